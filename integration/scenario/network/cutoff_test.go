package network_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// cutTTL is short, and long enough for everybody to stand in the queue before the cut, on a busy machine.
const cutTTL = 4 * time.Second

// blackHole lets nothing through in either direction, and in the end everything that was swallowed.
const blackHole = "black hole"

// cuts are ways to be cut off until the line is healed.
var cuts = map[string]func(*faults.Proxy){
	blackHole: (*faults.Proxy).BlackHole,
	// The server hears nothing of the first, and the first does not learn that from anybody.
	"requests dropped": func(p *faults.Proxy) { p.Requests.Drop() },
	// The server hears and does everything, renewals included, and the first does not learn of it: it must not count on
	// them. Its lease lasts longer than it knows, so the next one waits longer, for nobody.
	"answers dropped": func(p *faults.Proxy) { p.Answers.Drop() },
	// Every connection is reset, and each new one.
	"refused": (*faults.Proxy).Refuse,
}

// Holders are cut off and do not know when the line will heal. The context of each ends, by its own clock, before the next
// contender is granted the name. The fence refuses what the holder has sent, whenever that arrives. After the line has
// healed, all who were cut off are served soon. All contests run side by side.
func TestNetwork_cutOff(t *testing.T) {
	t.Parallel()
	rig.Label(t)
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	var contests []*contest
	phases := []float64{0.9, 0.1} // late and early between two renewals; a bubble of fake time tries all of it
	for fault, cut := range cuts {
		for i, way := range rig.Ways {
			c := newContest(t, cluster, way, way.Name+", "+fault, cutTTL)
			c.fault, c.cut, c.phase = fault, cut, phases[i]
			contests = append(contests, c)
			c.stand(t)
			c.work(t)
		}
	}
	struck := make(chan error)
	for _, c := range contests {
		ctx := rig.Bounded(t)
		go func() {
			err := c.strike(ctx)
			c.writeLate(ctx)
			struck <- err
		}()
	}
	for range contests {
		require.NoError(t, rig.Await(t, struck, "the outage did not come"))
	}

	for _, c := range contests {
		rig.Await(t, c.first.Context().Done(), "the first is not told: "+c.name)
		rig.RequireLost(t, context.Cause(c.first.Context()), lease.ReasonDeadlinePassed)
		requireServed(t, c.waiters[0])
		requireServed(t, c.waiters[1])
	}
	healed := time.Now()
	for _, c := range contests {
		c.line.Heal()
		// The first comes back as well.
		c.waiters = append(c.waiters, c.goTurn(rig.Bounded(t), c.sessions[0], c.line.Client))
	}
	for _, c := range contests {
		for _, tn := range c.waiters[2:] {
			requireServed(t, tn)
			require.WithinRange(t, tn.at, healed, healed.Add(rig.ServedWithin(c.ttl)), c.name)
			require.Greater(t, tn.token, c.waiters[1].token, c.name)
		}
		require.Greater(t, c.waiters[0].token, c.first.Token(), c.name)
		require.Greater(t, c.waiters[1].token, c.waiters[0].token, c.name)
		rig.RequireLost(t, c.first.Free(rig.Bounded(t)), lease.ReasonDeadlinePassed)

		fenced := rig.Await(t, c.late[c.fenced], "the first's last write did not end: "+c.name)
		plain := rig.Await(t, c.late[c.plain], "the first's last write did not end: "+c.name)
		if c.fault == blackHole { // the first's last writes reach the server after its successors'
			require.ErrorIs(t, fenced, fence.ErrStale, c.name)
			require.NoError(t, plain, c.name)
			require.Positive(t, c.plain.Regressions(t, c.direct), "no stale write arrived: the fence had nothing to do")
		}
	}
	finish(t, contests)
}

// strike cuts the first off at a moment between two renewals.
func (c *contest) strike(ctx context.Context) error {
	in := c.line.In
	if err := in.AwaitAnswered(ctx, faults.LeaseKeepAlive, in.Answered(faults.LeaseKeepAlive)+1); err != nil {
		return err
	}
	time.Sleep(time.Duration(c.phase * float64(c.ttl/3)))
	c.line.Each(c.cut)
	return nil
}
