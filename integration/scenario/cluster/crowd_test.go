package cluster_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// crowd is a number of sessions that take turns on one name, and a witness of their holds.
type crowd struct {
	rig.Witness
	turns chan struct{} // receives a value for each turn that was released without an error
	stop  func()        // returns when all sessions have stopped

	lost   atomic.Int64  // turns that failed because a lease was lost
	failed chan struct{} // closed when a turn has failed for another reason
}

// gather starts a crowd of three sessions, each with its own client. The test's cleanup stops it.
func gather(t *testing.T, way rig.Way, endpoints []string, name string, ttl time.Duration) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{turns: make(chan struct{}, 1), failed: make(chan struct{})}
	fail := sync.OnceFunc(func() { close(c.failed) })
	var wg sync.WaitGroup
	for range 3 {
		s := rig.NewSession(t, etcdtest.NewClient(t, endpoints), lease.Options{TTL: ttl})
		wg.Go(func() {
			for ctx.Err() == nil {
				err := c.turn(ctx, way, s, name)
				switch {
				case err == nil:
					select {
					case c.turns <- struct{}{}:
					case <-ctx.Done():
					}
				case errors.Is(err, lease.ErrLost):
					c.lost.Add(1)
				case ctx.Err() == nil:
					t.Errorf("a turn of %q failed: %v", name, err)
					fail()
					return
				}
			}
		})
	}
	c.stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(c.stop)
	return c
}

// turn takes the name and releases it.
func (c *crowd) turn(ctx context.Context, way rig.Way, s *lease.Session, name string) error {
	h, err := way.Take(ctx, s, name)
	if err != nil {
		return err
	}
	c.Follow(h)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rig.Patience)
	defer cancel()
	return h.Free(ctx)
}

// amid calls do while the crowd takes turns as fast as it can. Without a receiver of turns, outside of amid and goesOn,
// the crowd stops after a few turns.
func (c *crowd) amid(do func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-c.turns:
			case <-done:
				return
			}
		}
	}()
	defer func() {
		close(done)
		<-stopped
	}()
	do()
}

// goesOn waits for n more turns.
func (c *crowd) goesOn(t *testing.T, n int) {
	t.Helper()
	for range n + 1 { // the first may be an earlier turn
		select {
		case <-c.turns:
		case <-c.failed:
			t.FailNow() // the session has reported why
		case <-time.After(rig.Patience):
			require.FailNow(t, "no session gets a turn")
		}
	}
}

// end stops the crowd and checks its holds, and that the queue is empty.
func (c *crowd) end(t *testing.T, client *clientv3.Client, name string, least int) {
	t.Helper()
	c.stop()
	c.Check(t, least)
	rig.AwaitQueue(t, client, name, 0)
}

// take takes a name and lets the witness follow the hold.
func take(t *testing.T, w *rig.Witness, way rig.Way, s *lease.Session, name string) *rig.Hold {
	t.Helper()
	h := way.MustTake(t, s, name)
	w.Follow(h)
	return h
}

// lostFor waits until a hold has ended and checks the reason.
func lostFor(t *testing.T, h *rig.Hold, want lease.Reason) {
	t.Helper()
	rig.RequireLost(t, rig.AwaitEnd(t, h.Context()), want)
}
