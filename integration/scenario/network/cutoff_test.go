package network_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/scenario/rig"
	"github.com/leasefence/leasefence/lease"
)

// cutTTL is short, and long enough for everybody to stand in the queue before the cut, on a busy machine.
const cutTTL = 4 * time.Second

// outage is a way to be cut off until the line is healed.
type outage struct {
	ttl     time.Duration
	prepare func(*testing.T, *contest)              // before the first has a session; may be nil
	strike  func(context.Context, *contest) error   // returns when the first is cut off
	check   func(*testing.T, []*contest, []outcome) // in the end; may be nil
}

// outcome is what became of a contest.
type outcome struct {
	ttl  time.Duration
	lost lease.Status           // of the first's session
	late map[rig.Resource]error // what became of the first's last writes
}

// cutOff has first holders cut off, for good as far as they know. Each is told so by its own clock before the next is
// granted the name; what it has sent is refused by the fence, whenever it arrives; and all who were cut off are served
// soon after the line has healed.
func cutOff(t *testing.T, o outage) {
	t.Helper()
	rig.Label(t)
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	var contests []*contest
	for _, way := range rig.Ways {
		for i, phase := range []float64{0.1, 0.9} {
			c := newContest(t, cluster, way, fmt.Sprint(way.Name, i), o.ttl, phase)
			contests = append(contests, c)
			if o.prepare != nil {
				o.prepare(t, c)
			}
		}
	}
	outcomes := make([]outcome, len(contests))
	struck := make(chan error)
	for i, c := range contests {
		c.stand(t)
		c.work(t)
		outcomes[i].ttl = c.sessions[0].Status().TTL
	}
	for _, c := range contests {
		ctx := rig.Bounded(t)
		go func() {
			err := o.strike(ctx, c)
			c.deadline = c.sessions[0].Status().Deadline
			c.writeLate(ctx)
			struck <- err
		}()
	}
	for range contests {
		require.NoError(t, rig.Await(t, struck, "the outage did not come"))
	}

	for i, c := range contests {
		rig.Await(t, c.first.Context().Done(), "the first is not told")
		outcomes[i].lost = c.sessions[0].Status()
		requireLost(t, context.Cause(c.first.Context()), lease.DeadlinePassed)
		requireServed(t, c.waiters[0])
		requireServed(t, c.waiters[1])
	}
	healed := time.Now()
	for i, c := range contests {
		c.heal()
		// The first comes back as well.
		c.waiters = append(c.waiters, c.goTurn(rig.Bounded(t), c.sessions[0], c.line.Client))
		outcomes[i].late = make(map[rig.Resource]error)
	}
	for i, c := range contests {
		for _, tn := range c.waiters[2:] {
			requireServed(t, tn)
			require.WithinRange(t, tn.at, healed, healed.Add(rig.ServedWithin(outcomes[i].ttl)))
			require.Greater(t, tn.token, c.waiters[1].token)
		}
		for r, ended := range c.late {
			outcomes[i].late[r] = rig.Await(t, ended, "the first's last write did not end")
		}
		require.Greater(t, c.waiters[0].token, c.first.Token())
		require.Greater(t, c.waiters[1].token, c.waiters[0].token)
		requireLost(t, c.first.Free(rig.Bounded(t)), lease.DeadlinePassed)
	}
	if o.check != nil {
		o.check(t, contests, outcomes)
	}
	finish(t, contests)
}

func requireLost(t *testing.T, err error, want lease.Reason) {
	t.Helper()
	var lost *lease.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, want.String(), lost.Reason.String())
}

// ofLease matches the renewals of a lease and their answers.
func ofLease(id clientv3.LeaseID) func(any) bool {
	return func(message any) bool {
		m, ok := message.(interface{ GetID() int64 })
		return ok && m.GetID() == int64(id)
	}
}

// striking cuts all proxies at a moment between two renewals.
func striking(cut func(*faults.Proxy)) func(context.Context, *contest) error {
	return func(ctx context.Context, c *contest) error {
		in := c.line.In
		if err := in.AwaitAnswered(ctx, faults.LeaseKeepAlive, in.Answered(faults.LeaseKeepAlive)+1); err != nil {
			return err
		}
		time.Sleep(time.Duration(c.phase * float64(c.ttl/3)))
		c.line.Each(cut)
		return nil
	}
}

// Nothing comes through in either direction, and in the end everything that was swallowed does: the first's last writes
// reach the server after its successors'. The resource without a fence takes them, the other one refuses them.
func TestNetwork_blackHole(t *testing.T) {
	t.Parallel()
	cutOff(t, outage{
		ttl:    cutTTL,
		strike: striking((*faults.Proxy).BlackHole),
		check: func(t *testing.T, contests []*contest, outcomes []outcome) {
			t.Helper()
			for i, c := range contests {
				require.ErrorIs(t, outcomes[i].late[c.fenced], fence.ErrStale)
				require.NoError(t, outcomes[i].late[c.plain])
				require.Positive(t, c.plain.Regressions(t, c.direct), "no stale write arrived: the fence had nothing to do")
			}
		},
	})
}

// The server hears nothing of the first, and the first does not learn that from anybody.
func TestNetwork_requestsDropped(t *testing.T) {
	t.Parallel()
	cutOff(t, outage{ttl: cutTTL, strike: striking(func(p *faults.Proxy) { p.Requests.Drop() })})
}

// The server hears and does everything, renewals included, and the first does not learn of it: it must not count on them.
// Its lease lasts longer than it knows, so the next one waits longer, for nobody.
func TestNetwork_answersDropped(t *testing.T) {
	t.Parallel()
	cutOff(t, outage{ttl: cutTTL, strike: striking(func(p *faults.Proxy) { p.Answers.Drop() })})
}

// Every connection is reset, and each new one.
func TestNetwork_refused(t *testing.T) {
	t.Parallel()
	cutOff(t, outage{ttl: cutTTL, strike: striking((*faults.Proxy).Refuse)})
}

// The last renewal is answered late and counts, but from when it was sent: the server began to count then. Who counts from
// the answer holds on for as long as that was late. The cut comes when the server has renewed the lease.
func TestNetwork_lastRenewalAnsweredLateThenCut(t *testing.T) {
	t.Parallel()
	cutOff(t, outage{
		ttl: 5 * time.Second,
		strike: func(ctx context.Context, c *contest) error {
			late := c.line.In.Inject(t, faults.Rule{
				Fault: faults.DelayAnswer, Method: faults.LeaseKeepAlive, Times: 1, Delay: c.ttl / 2,
				// Of the first: the one who waits on the same line renews too.
				Match: ofLease(c.sessions[0].Status().LeaseID),
			})
			select {
			case <-late.Hit():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			c.line.Each((*faults.Proxy).BlackHole)
			return nil
		},
		check: func(t *testing.T, contests []*contest, outcomes []outcome) {
			t.Helper()
			counted := 0
			for i, c := range contests {
				if outcomes[i].lost.Deadline.After(c.deadline) {
					counted++
				}
			}
			require.Positive(t, counted, "no late answer counted")
		},
	})
}

// No renewal of the first is ever answered: there is nothing to count from but the grant.
func TestNetwork_firstRenewalNeverAnswered(t *testing.T) {
	t.Parallel()
	cutOff(t, outage{
		ttl: 5 * time.Second,
		prepare: func(t *testing.T, c *contest) {
			t.Helper()
			c.mute = c.line.In.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
		},
		strike: func(_ context.Context, c *contest) error {
			time.Sleep(time.Duration(c.phase * float64(c.ttl/3)))
			c.line.Each((*faults.Proxy).BlackHole)
			return nil
		},
	})
}
