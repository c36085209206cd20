package load_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// ttl is long enough for a busy machine, and short enough for a waiter that nobody serves to be missed.
const ttl = 10 * time.Second

// row is an arrangement of waiters for one name. Of elections there are fewer: each candidate stands in etcd's queue by
// itself, and of locks the first of each session.
type row struct {
	way              rig.Way
	clients, waiters int
}

var lock, election = rig.Ways[0], rig.Ways[1]

// crowd waits for a name that a rival holds.
type crowd struct {
	way      rig.Way
	name     string
	direct   *clientv3.Client
	in       *faults.Interceptor // of all waiters
	sessions []*lease.Session    // the rival's first
	rival    *rig.Hold
	waiters  []*waiter
	handing  func() // called each time that the name is about to be handed over; may be nil

	witness rig.Witness
	wg      sync.WaitGroup
}

// waiter is one of a crowd.
type waiter struct {
	cancel context.CancelCauseFunc
	err    error
}

var errStorm = errors.New("the storm")

// eachCrowd has waiters stand behind a rival and calls do, which ends the rival's hold. Then it checks that nobody was
// live together with another, that nothing is left in the queue, and that who comes next is served promptly.
func eachCrowd(t *testing.T, rows []row, do func(*testing.T, *crowd)) {
	t.Helper()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	for _, row := range rows {
		t.Run(fmt.Sprintf("%s, %d clients, %d waiters", row.way.Name, row.clients, row.waiters), func(t *testing.T) {
			rig.Label(t)
			c := &crowd{way: row.way, name: "n", direct: cluster.Members[0].Client(t), in: faults.NewInterceptor(t)}
			t.Cleanup(c.wg.Wait) // after their contexts have ended
			rival := c.session(t, c.direct)
			c.rival = c.way.MustTake(t, rival, c.name)
			c.witness.Follow(c.rival)
			for range row.clients {
				s := c.session(t, cluster.Client(t, etcdtest.Dial(c.in.DialOptions()...)))
				for range row.waiters / row.clients {
					c.goWait(t, s)
				}
			}
			standing := row.clients // of locks only the first of each session stands in etcd's queue
			if row.way.Name == "election" {
				standing = row.waiters
			}
			rig.AwaitQueue(t, c.direct, c.name, 1+standing)

			do(t, c)
			c.wg.Wait()
			rig.AwaitQueue(t, c.direct, c.name, 0)
			begun := time.Now()
			for _, s := range c.sessions {
				h := c.way.MustTake(t, s, c.name)
				c.witness.Follow(h)
				require.NoError(t, h.Free(rig.Bounded(t)))
			}
			require.WithinRange(t, time.Now(), begun, begun.Add(rig.ServedWithin(ttl)))
			rig.CloseAll(t, c.direct, c.sessions, c.name)
			c.witness.Check(t, len(c.sessions))
		})
	}
}

func (c *crowd) session(t *testing.T, client *clientv3.Client) *lease.Session {
	t.Helper()
	s := rig.NewSession(t, client, lease.Options{TTL: ttl})
	c.sessions = append(c.sessions, s)
	return s
}

func (c *crowd) goWait(t *testing.T, s *lease.Session) {
	t.Helper()
	w := new(waiter)
	var ctx context.Context
	ctx, w.cancel = context.WithCancelCause(rig.Bounded(t))
	c.waiters = append(c.waiters, w)
	c.wg.Go(func() {
		defer w.cancel(nil)
		h, err := c.way.Take(ctx, s, c.name)
		if w.err = err; err != nil {
			return
		}
		c.witness.Follow(h)
		if c.handing != nil {
			c.wg.Go(c.handing)
		}
		if err := h.Free(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("not freed: %v", err)
		}
	})
}

// asked is how many requests those who wait have sent, renewals apart.
func (c *crowd) asked() int {
	return c.in.Sent(faults.Txn) + c.in.Sent(faults.Range) + c.in.Sent(faults.Watch)
}

// Two thousand wait, and each of them has one turn, of which the others are not told.
func TestLoad_twoThousandWaiters(t *testing.T) {
	eachCrowd(t, []row{{lock, 1, 2000}, {lock, 20, 500}}, func(t *testing.T, c *crowd) {
		t.Helper()
		asked := c.asked()
		begun := time.Now()
		require.NoError(t, c.rival.Free(rig.Bounded(t)))
		c.wg.Wait()
		asked = c.asked() - asked
		t.Logf("%d turns in %v, %d requests", len(c.waiters), time.Since(begun), asked)
		for _, w := range c.waiters {
			require.NoError(t, w.err)
		}
		// A turn takes an entry, two watches with a look after each, and a release; where the machine is so slow that keys are guarded
		// another watch and a read, and what is repeated. Where all others looked too it would take more than twenty.
		require.Less(t, asked, 15*len(c.waiters))
	})
}

// Of many who wait all but a few give up, in no order: half of them at the same time, and the others in waves, each
// while the name is handed over to somebody who may be in it. Those who stay are served, and who has given up blocks nobody.
func TestLoad_cancelStorm(t *testing.T) {
	eachCrowd(t, []row{{lock, 1, 2000}, {lock, 20, 2000}, {election, 20, 100}}, func(t *testing.T, c *crowd) {
		t.Helper()
		const stay, waves = 20, 20 // one in so many stays
		var leavers []*waiter
		for _, i := range rand.Perm(len(c.waiters)) {
			if i%stay != 0 {
				leavers = append(leavers, c.waiters[i])
			}
		}
		var wave atomic.Int64
		each := len(leavers) / 2 / waves
		c.handing = func() {
			n := int(wave.Add(1) - 1)
			for _, w := range leavers[min(n*each, len(leavers)/2):min((n+1)*each, len(leavers)/2)] {
				w.cancel(errStorm)
			}
		}
		begun := time.Now()
		for _, w := range leavers[len(leavers)/2:] {
			go w.cancel(errStorm)
		}
		require.NoError(t, c.rival.Free(rig.Bounded(t)))
		c.wg.Wait()
		gaveUp := 0
		for i, w := range c.waiters {
			switch {
			case i%stay == 0:
				require.NoError(t, w.err, "waiter %d was to stay", i)
			case w.err != nil:
				require.ErrorIs(t, w.err, errStorm)
				gaveUp++
			}
		}
		t.Logf("%d gave up, %d were served, in %v", gaveUp, len(c.waiters)-gaveUp, time.Since(begun))
		require.Greater(t, gaveUp, len(c.waiters)/2, "it was no storm")
	})
}
