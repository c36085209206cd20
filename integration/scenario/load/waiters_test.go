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

// ttl is long enough for a busy machine, and short enough to notice soon that a waiter is not served.
const ttl = 10 * time.Second

// row is an arrangement of waiters for one name. Elections have fewer: each candidate has a key in etcd's queue, while
// of a lock's waiters only the first of each session has one.
type row struct {
	way              rig.Way
	clients, waiters int
}

var lock, election = rig.Ways[0], rig.Ways[1]

// crowd is a number of waiters for a name that a rival holds.
type crowd struct {
	way      rig.Way
	name     string
	direct   *clientv3.Client
	in       *faults.Interceptor // of all waiters
	sessions []*lease.Session    // the rival's first
	rival    *rig.Hold
	waiters  []*waiter
	handing  func() // called right before each waiter releases the name; may be nil

	witness rig.Witness
	wg      sync.WaitGroup
}

// waiter is a waiter of a crowd.
type waiter struct {
	cancel context.CancelCauseFunc
	err    error
}

var errStorm = errors.New("the storm")

// eachCrowd starts the waiters behind a rival and calls do, which ends the rival's hold. Then it checks that no two
// holds were live at once, that the queue is empty, and that later acquisitions are served promptly.
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
			standing := row.clients // of a lock's waiters only the first of each session is in etcd's queue
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

// asked is how many requests the waiters have sent, without renewals.
func (c *crowd) asked() int {
	return c.in.Sent(faults.Txn) + c.in.Sent(faults.Range) + c.in.Sent(faults.Watch)
}

// Each of up to two thousand waiters gets one turn, and a turn costs the other waiters no requests.
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
		// A turn takes an entry, two watches with a read after each, and a release. On a slow machine the holder's key gets a
		// guard, another watch and a read, and requests are retried. If all other waiters read too, a turn would take more
		// than twenty requests.
		require.Less(t, asked, 15*len(c.waiters))
	})
}

// Nearly all of many waiters give up, in random order: half of them at the same time, the others in waves, each while
// the name is handed over to a waiter that may be in the wave. The remaining waiters are served, and those that have
// given up block nobody.
func TestLoad_cancelStorm(t *testing.T) {
	eachCrowd(t, []row{{lock, 1, 2000}, {lock, 20, 2000}, {election, 20, 100}}, func(t *testing.T, c *crowd) {
		t.Helper()
		const stay, waves = 20, 20 // one in 20 waiters stays
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
				require.NoError(t, w.err, "waiter %d, which does not give up", i)
			case w.err != nil:
				require.ErrorIs(t, w.err, errStorm)
				gaveUp++
			}
		}
		t.Logf("%d gave up, %d were served, in %v", gaveUp, len(c.waiters)-gaveUp, time.Since(begun))
		require.Greater(t, gaveUp, len(c.waiters)/2, "too few waiters gave up: the test proves nothing")
	})
}
