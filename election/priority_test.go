package election_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// rank is a candidate of each priority that is given, by name, in the order in which they come; the first leads.
func rank(t *testing.T, srv *fakeetcd.Server, priorities ...int) (*election.Leadership, []*candidate) {
	t.Helper()
	var leader *election.Leadership
	list := make([]*candidate, len(priorities))
	for i, priority := range priorities {
		p := newProcess(t, srv, lease.Options{})
		opts := election.Options{Value: string(rune('a' + i)), Priority: priority}
		if i == 0 {
			leader = p.leads(t, opts)
			continue
		}
		list[i] = p.waits(t, opts)
	}
	return leader, list
}

func pick(list []*candidate, order []int) []*candidate {
	var picked []*candidate
	for _, i := range order {
		picked = append(picked, list[i])
	}
	return picked
}

func TestCampaign_priority(t *testing.T) {
	for name, c := range map[string]struct{ priorities, order []int }{
		"none":                 {[]int{0, 0, 0, 0}, []int{1, 2, 3}},
		"equals keep order":    {[]int{0, 3, 3, 3}, []int{1, 2, 3}},
		"one passes":           {[]int{0, 0, 0, 5}, []int{3, 1, 2}},
		"the leader stays":     {[]int{0, 5}, []int{1}},
		"the highest is last":  {[]int{9, 1, 2, 3}, []int{3, 2, 1}},
		"lower ones come last": {[]int{0, 5, 0, 5, 0}, []int{1, 3, 2, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leader, list := rank(t, newServer(t), c.priorities...)
				require.NoError(t, leader.Err())
				requireOrder(t, leader, pick(list, c.order)...)
			})
		})
	}
}
