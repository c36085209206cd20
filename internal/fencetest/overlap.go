package fencetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// call is a call of a verb by the holder of a lock, whose token comes without a name if lock is "".
type call struct {
	Verb
	name  string
	token fence.Token
	lock  string
}

func (c call) String() string { return fmt.Sprintf("%s with %d of %q", c.name, c.token, c.lock) }

func (c call) after(m Marks) (Marks, error) { return m.After(c.Verb, c.token, c.lock, false) }

func (c call) run(t *testing.T, resource string) error {
	t.Helper()
	return c.Call(c.Holder(t.Context(), c.token, c.lock), resource)
}

// Overlap lets another holder act at each moment of a call of each verb. The results, the marks and the data are those of
// one of the two orders. others are the verbs of another client of the store.
//
// listen gets a function, which the client of r's verbs calls at each moment: before each request and before each answer.
// data returns the data of a resource; what a verb writes must show in it.
func (r Rules) Overlap(t *testing.T, others map[string]Verb, listen func(moment func()), data func(resource string) string) {
	t.Helper()
	left, act := 0, func() {}
	listen(func() {
		if left--; left == 0 {
			act()
		}
	})
	stop := func(nth int, other func()) { left, act = nth, other }
	comers := [][2]string{
		{"Claim", "accounts"}, {"ClaimRead", "accounts"}, {"Claim", "report"}, {"ClaimRead", "report"}, {"Move", "ledger"},
	}
	for name, v := range others {
		if v.Writes {
			comers = append(comers, [2]string{name, "accounts"})
			break // to the call that it meets, all writes are alike: each comes as a whole
		}
	}
	for _, before := range []Marks{{}, {40, 0, ""}, {40, 0, "accounts"}} {
		for name, v := range r.Verbs {
			for _, own := range []call{{v, name, 50, "accounts"}, {v, name, 60, "accounts"}, {v, name, 60, ""}} {
				if v.Moves {
					own.lock = "stock"
				}
				for _, c := range comers {
					for nth, more := 1, true; more; nth++ {
						resource := Rules{Verbs: others}.have(t, before)
						more = r.overlap(t, resource, before, own, call{others[c[0]], c[0], 54, c[1]}, nth, stop, data)
					}
				}
			}
		}
	}
}

// overlap lets the two act at a resource with these marks. It reports whether the call of own has an nth moment.
func (r Rules) overlap(t *testing.T, resource string, before Marks, own, other call, nth int,
	stop func(nth int, other func()), data func(resource string) string,
) bool {
	t.Helper()
	type outcome struct {
		own, other error
		marks      Marks
		data       string
	}
	var got, first, second outcome // first: own was first
	acted := false
	stop(nth, func() {
		acted = true
		_, got.other = split(other.run(t, resource))
		first.data = data(resource)
	})
	_, got.own = split(own.run(t, resource))
	if !acted {
		return false
	}
	got.marks, got.data = r.Marks(t, resource).Normal(), data(resource)
	first.marks, first.own = own.after(before)
	first.marks, first.other = other.after(first.marks)
	second.marks, second.other = other.after(before)
	second.marks, second.own = own.after(second.marks)
	if second.data = first.data; own.Writes && second.own == nil {
		second.data = "new"
	}
	want := second
	if nth > 1 && !assert.ObjectsAreEqual(second, got) {
		want = first
	}
	require.Equal(t, want, got, "%s at %+v, and at moment %d %s", own, before, nth, other)
	return true
}
