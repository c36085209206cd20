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

// crowd are sessions that take turns on one name, whatever happens, and a witness of who was live when.
type crowd struct {
	rig.Witness
	turns chan struct{} // gets one for each turn that was let go in order
	stop  func()        // returns when all have ended

	lost   atomic.Int64  // turns that came to nothing because a lease was lost
	failed chan struct{} // closed when one came to nothing for another reason
}

// gather starts a crowd of three, each with a client of its own, which stops at the end of the test at the latest.
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

// turn takes the name and lets it go.
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

// amid does something while turns are taken as fast as they can be: otherwise all wait for them to be counted.
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
	for range n + 1 { // the first may have waited to be told
		select {
		case <-c.turns:
		case <-c.failed:
			t.FailNow() // it has told why
		case <-time.After(rig.Patience):
			require.FailNow(t, "nobody gets a turn")
		}
	}
}

// end stops the crowd and checks what the witness has seen, and that nobody is left in the queue.
func (c *crowd) end(t *testing.T, client *clientv3.Client, name string, least int) {
	t.Helper()
	c.stop()
	c.Check(t, least)
	rig.AwaitQueue(t, client, name, 0)
}

// take holds a name, and has the witness know.
func take(t *testing.T, w *rig.Witness, way rig.Way, s *lease.Session, name string) *rig.Hold {
	t.Helper()
	h := way.MustTake(t, s, name)
	w.Follow(h)
	return h
}

// wait begins to wait for a name.
func wait(t *testing.T, w *rig.Witness, way rig.Way, s *lease.Session, name string) <-chan *rig.Hold {
	t.Helper()
	granted := make(chan *rig.Hold, 1)
	ctx := rig.Bounded(t)
	go func() {
		h, err := way.Take(ctx, s, name)
		if err != nil {
			t.Errorf("wait: %v", err)
			return
		}
		w.Follow(h)
		granted <- h
	}()
	return granted
}

// lostFor checks why a hold has ended, or ends.
func lostFor(t *testing.T, h *rig.Hold, want lease.Reason) {
	t.Helper()
	rig.RequireLost(t, rig.AwaitEnd(t, h.Context()), want)
}
