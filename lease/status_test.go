package lease_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// change is a status and the time when it was reported.
type change struct {
	lease.Status
	at time.Duration
}

// changes collects what the session's Changes yields.
type changes struct {
	mu    sync.Mutex
	seen  []change
	ended chan struct{}
}

func (e *env) changes(ctx context.Context) *changes {
	c := &changes{ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for st := range e.s.Changes(ctx) {
			c.mu.Lock()
			c.seen = append(c.seen, change{st, e.now()})
			c.mu.Unlock()
		}
	}()
	return c
}

// take returns the changes since its last call.
func (c *changes) take() []change {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = nil
	return seen
}

func states(seen []change) []lease.State {
	var list []lease.State
	for _, c := range seen {
		list = append(list, c.State)
	}
	return list
}

// Changes reports jeopardy as soon as a renewal is overdue, and its end; the deadline moves with the renewals.
func TestSession_Changes_jeopardyAndItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		got := e.changes(t.Context())
		require.Equal(t, []change{{e.s.Status(), 0}}, got.take(), "the present status comes first")

		e.at(third + time.Second)
		e.c.Cut()
		e.at(2 * third)
		require.Empty(t, got.take(), "a renewal is no change")
		e.at(2*third + patience)
		seen := got.take()
		require.Equal(t, []lease.State{lease.StateJeopardy}, states(seen))
		require.Greater(t, seen[0].at, 2*third+patience-1)
		require.Equal(t, e.began.Add(third+usable), seen[0].Deadline, "the deadline has not moved")
		require.NoError(t, seen[0].Err)
		requireLive(t, l)

		e.at(third + usable - time.Second)
		require.Empty(t, got.take())
		e.c.Restore()
		seen = got.take()
		require.Equal(t, []lease.State{lease.StateHeld}, states(seen))
		require.Equal(t, e.now(), seen[0].at)
		renewed := e.s.Status().Deadline.Add(-usable).Sub(e.began)
		require.Contains(t, e.sent(fakeetcd.KeepAliveOnce), renewed, "counted from one of the attempts")

		e.c.Cut()
		e.at(10 * third)
		seen = got.take()
		require.Equal(t, []lease.State{lease.StateJeopardy, lease.StateLost}, states(seen))
		require.Equal(t, renewed+usable, seen[1].at)
		requireLost(t, seen[1].Err, lease.ReasonDeadlinePassed)
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)

		e.c.Restore()
		e.lock(t, "b")
		seen = got.take()
		require.Equal(t, []lease.State{lease.StateHeld}, states(seen))
		require.Equal(t, []clientv3.LeaseID{seen[0].LeaseID}, e.leaseIDs(), "a new lease")
		require.NoError(t, e.s.Close(t.Context()))
		seen = got.take()
		require.Equal(t, []lease.State{lease.StateLost}, states(seen))
		requireLost(t, seen[0].Err, lease.ReasonSessionClosed)
		require.ErrorIs(t, seen[0].Err, lease.ErrClosed)
		<-got.ended
	})
}

// Changes ends with its context or with the session; each use begins with the present status. A slow consumer misses
// states, and gets the latest and the last.
func TestSession_Changes_ends(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		got := e.changes(ctx)
		require.Len(t, got.take(), 1)
		cancel()
		<-got.ended
		require.Empty(t, got.take())

		n := 0
		for st := range e.s.Changes(t.Context()) {
			switch n++; n {
			case 1:
				require.Equal(t, lease.StateHeld, st.State)
				require.NoError(t, e.srv.Revoke(st.LeaseID))
				e.at(third)
				require.Equal(t, lease.StateLost, e.s.Status().State)
				e.lock(t, "a")
			case 2:
				require.Equal(t, e.s.Status(), st)
				require.Equal(t, []clientv3.LeaseID{st.LeaseID}, e.leaseIDs(), "a new lease")
				require.NoError(t, e.s.Close(t.Context()))
			default:
				require.Equal(t, lease.StateLost, st.State)
			}
		}
		require.Equal(t, 3, n)
		require.Equal(t, third, e.now())
		for range 20 { // a choice between two that are ready, the change and the end, is random
			e, seen := start(t, lease.Options{}), []lease.State(nil)
			for st := range e.s.Changes(t.Context()) {
				if seen = append(seen, st.State); len(seen) == 1 {
					require.NoError(t, e.s.Close(t.Context()))
				}
			}
			require.Equal(t, []lease.State{lease.StateHeld, lease.StateLost}, seen)
		}
		got = e.changes(t.Context())
		<-got.ended
		require.Equal(t, []lease.State{lease.StateLost}, states(got.take()))
	})
}

func TestReason_String_unknown(t *testing.T) {
	for _, s := range []fmt.Stringer{lease.State(0), lease.State(4), lease.State(-1), lease.Reason(0), lease.Reason(7), lease.Reason(-1)} {
		require.Regexp(t, `^(State|Reason)\(-?\d\)$`, s.String())
	}
}

func TestStatus_inJSON(t *testing.T) {
	deadline := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, status := range map[string]lease.Status{
		`{"state":"held","lease":"694d9a3b2c1d0e4f","ttl":"30s","deadline":"2026-01-02T03:04:05Z"}`: {
			State: lease.StateHeld, LeaseID: 0x694d9a3b2c1d0e4f, TTL: 30 * time.Second, Deadline: deadline,
		},
		`{"state":"lost","lease":"1","ttl":"2s","error":"lease: lost: the lease has expired or was revoked"}`: {
			State: lease.StateLost, LeaseID: 1, TTL: 2 * time.Second, Err: &lease.LostError{Reason: lease.ReasonLeaseGone, LeaseID: 1},
		},
	} {
		text, err := json.Marshal(status)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}
