package integration_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// campaign is a Campaign under way.
type campaign struct {
	cancel context.CancelFunc
	l      *election.Leadership
	err    error
	done   chan struct{}
}

func goCampaign(ctx context.Context, s *lease.Session, name string, opts election.Options) *campaign {
	ctx, cancel := context.WithCancel(ctx)
	c := &campaign{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.l, c.err = election.Campaign(ctx, s, name, opts)
	}()
	return c
}

// won waits for the leadership.
func (c *campaign) won(t *testing.T) *election.Leadership {
	t.Helper()
	awaitClosed(t, c.done, "Campaign did not return")
	require.NoError(t, c.err)
	return c.l
}

// requireWaiting checks that the campaign has not returned.
func (c *campaign) requireWaiting(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
		require.FailNow(t, "Campaign returned while another leads", "leadership %v, error %v", c.l, c.err)
	default:
	}
}

// mustLead leads an election that nobody stands in.
func mustLead(t *testing.T, s *lease.Session, name string, opts election.Options) *election.Leadership {
	t.Helper()
	return goCampaign(bounded(t), s, name, opts).won(t)
}

// awaitOver waits for the end of a leadership and returns its cause.
func awaitOver(t *testing.T, l *election.Leadership) error {
	t.Helper()
	awaitClosed(t, l.Context().Done(), "the leadership did not end")
	return context.Cause(l.Context())
}

// leaseOf is the lease that the key of a contender for name is attached to.
func leaseOf(t *testing.T, name, key string) clientv3.LeaseID {
	t.Helper()
	text, _, _ := strings.Cut(strings.TrimPrefix(key, name+"/"), "-")
	id, err := strconv.ParseInt(text, 16, 64)
	require.NoError(t, err)
	return clientv3.LeaseID(id)
}

// leadersOf is the history of an election as the server tells it, from its first revision to the present one: each time that
// another led, or the same one with another value, or nobody.
func leadersOf(t *testing.T, srv *etcdtest.Server, name string) []election.Leader {
	t.Helper()
	last := srv.Revision(t)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	queue := map[string]election.Leader{}
	changes := []election.Leader{{}}
	for resp := range srv.Client(t).Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(1)) {
		require.NoError(t, resp.Err())
		for i, ev := range resp.Events {
			if standsIn(name, ev) {
				queue[string(ev.Kv.Key)] = leaderOf(ev.Kv)
			} else {
				delete(queue, string(ev.Kv.Key))
			}
			rev := ev.Kv.ModRevision
			if i+1 < len(resp.Events) && resp.Events[i+1].Kv.ModRevision == rev {
				continue // what is done in one revision is done at once
			}
			var leader election.Leader
			for _, l := range queue {
				if leader.None() || l.Token < leader.Token {
					leader = l
				}
			}
			if leader != changes[len(changes)-1] {
				changes = append(changes, leader)
			}
			if rev >= last {
				return changes
			}
		}
	}
	require.FailNow(t, "the history has not been told", "up to revision %d: %v", last, ctx.Err())
	return nil
}

// standsIn reports whether the event puts a contender for name.
func standsIn(name string, ev *clientv3.Event) bool {
	child, below := strings.CutPrefix(string(ev.Kv.Key), name+"/")
	owner, _, _ := strings.Cut(child, "-")
	return ev.Type == clientv3.EventTypePut && below && owner == hexOf(clientv3.LeaseID(ev.Kv.Lease))
}

func leaderOf(kv *mvccpb.KeyValue) election.Leader {
	return election.Leader{
		Value: string(kv.Value), Token: fence.Token(kv.CreateRevision),
		Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease),
	}
}

// values are what leaders have proclaimed; "" is nobody.
func values(leaders []election.Leader) []string {
	list := make([]string, len(leaders))
	for i, l := range leaders {
		list[i] = l.Value
	}
	return list
}

// requireGrowing checks that each leader's token is larger than all before, apart from changes of value and from none.
func requireGrowing(t *testing.T, leaders []election.Leader) {
	t.Helper()
	var last election.Leader
	for i, l := range leaders {
		if l.None() || l.Key == last.Key && l.Token == last.Token {
			continue
		}
		require.Greater(t, l.Token, last.Token, "leader %d of %v", i, values(leaders))
		last = l
	}
}

// sightings is what an observer has been shown.
type sightings struct {
	mu   sync.Mutex // guards the fields below
	seen []election.Leader
	err  error
}

// goObserve observes an election until the test ends.
func goObserve(t *testing.T, client *clientv3.Client, name string) *sightings {
	t.Helper()
	s := new(sightings)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for l, err := range election.Observe(ctx, client, name) {
			s.mu.Lock()
			if s.err = err; err == nil {
				s.seen = append(s.seen, l)
			}
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// all is everything that has been shown.
func (s *sightings) all(t *testing.T) []election.Leader {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(t, s.err)
	return slices.Clone(s.seen)
}

// await waits until what was shown last is as wanted.
func (s *sightings) await(t *testing.T, what string, wanted func(election.Leader) bool) election.Leader {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		seen := s.all(t)
		if len(seen) > 0 && wanted(seen[len(seen)-1]) {
			return seen[len(seen)-1]
		}
		require.True(t, time.Now().Before(deadline), "%s has not been shown; seen: %q", what, values(seen))
	}
}

// awaitValue waits until a leader with that value is shown; "" is nobody.
func (s *sightings) awaitValue(t *testing.T, value string) election.Leader {
	t.Helper()
	return s.await(t, value, func(l election.Leader) bool { return l.Value == value })
}

// requireEnd checks that the observer has been shown every change of a history from its first sighting to the end, and
// returns how many. It waits for the last.
func (s *sightings) requireEnd(t *testing.T, history []election.Leader) int {
	t.Helper()
	last := history[len(history)-1]
	s.await(t, "the end", func(l election.Leader) bool { return l == last })
	seen := s.all(t)
	from := len(history) - len(seen)
	require.GreaterOrEqual(t, from, 0, "more was seen than has happened: %q of %q", values(seen), values(history))
	require.Equal(t, history[from:], seen)
	return len(seen)
}

// requireNothingLeft checks that no key and no lease outlives what the test has closed, or killed.
func requireNothingLeft(t *testing.T, srv *etcdtest.Server) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		keys, leases := srv.Keys(t, ""), srv.Leases(t)
		if len(keys) == 0 && len(leases) == 0 {
			return
		}
		require.True(t, time.Now().Before(deadline), "keys %q, leases %x are left", keys, leases)
	}
}
