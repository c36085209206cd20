package lease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// ledger checks that there are never two holders at a time, and that tokens grow.
type ledger struct {
	t *testing.T

	mu     sync.Mutex // guards the fields below
	holder *lease.Lock
	last   fence.Token
	grants int
}

func (g *ledger) granted(l *lease.Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grants++
	if g.holder != nil && g.holder.Context().Err() == nil {
		assert.Fail(g.t, "two holders", "tokens %v and %v", g.holder.Token(), l.Token())
	}
	assert.Greater(g.t, l.Token(), g.last)
	g.holder, g.last = l, l.Token()
}

// Sessions of several goroutines each compete for one name over a network that delays, loses and reorders messages;
// callers give up at any moment, and texts differ. There is one holder at a time, tokens grow, every caller gets the
// lock or an expected error, and no key stays.
func TestTurns_randomFaults(t *testing.T) {
	const sessions, goroutines, turns = 3, 4, 4
	grants := 0
	for seed := range uint64(150) {
		inBubble(t, strconv.FormatUint(seed, 10), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			srv := newServer(t)
			book := &ledger{t: t}
			var all []*env
			var wg sync.WaitGroup
			for range sessions {
				e := open(t, srv, lease.Options{TTL: time.Hour}) // the lease is not the subject
				all = append(all, e)
				disturb(e.c, r)
				for range goroutines {
					r := rand.New(rand.NewPCG(r.Uint64(), 2))
					wg.Go(func() {
						for range turns {
							e.turn(t, r, book)
						}
					})
				}
			}
			served := make(chan struct{})
			go func() {
				wg.Wait()
				close(served)
			}()
			receive(t, served)
			for _, e := range all {
				e.c.Reset()
				require.Equal(t, lease.StateHeld, e.s.Status().State)
			}
			time.Sleep(2 * time.Hour) // late requests have arrived, and their keys are deleted
			synctest.Wait()
			require.Empty(t, all[0].keys(""))
			require.Zero(t, srv.Watchers())
			grants += book.grants
		})
	}
	require.Greater(t, grants, 150*sessions*goroutines*turns/4)
}

// disturb injects random faults into some of a client's messages.
func disturb(c *fakeetcd.Client, r *rand.Rand) {
	within := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for range r.IntN(6) {
		dice, one := rand.New(rand.NewPCG(r.Uint64(), 3)), 2+r.IntN(8)
		f := fakeetcd.Fault{Times: 1 + r.IntN(8), Match: func(fakeetcd.Call) bool { return dice.IntN(one) == 0 }}
		switch r.IntN(7) {
		case 0:
			f.Lose, f.After = fakeetcd.Answer, within(time.Second)
		case 1:
			f.Lose, f.Err, f.After = fakeetcd.Answer, fakeetcd.ErrUnavailable, within(time.Second)
		case 2:
			f.Lose, f.Before = fakeetcd.Request, within(time.Second)
		case 3:
			f.Before, f.Late = within(20*time.Second), true
		case 4:
			f.After = within(10 * time.Second)
		case 5:
			f.Err = rpctypes.ErrGRPCNoSpace
			f.Match = func(call fakeetcd.Call) bool { return puts(call) && dice.IntN(one) == 0 }
		case 6:
			f.Before = within(2 * time.Second)
		}
		c.Inject(fakeetcd.Txn, f)
	}
}

// turn is one attempt to get the lock, and a hold if it succeeds.
func (e *env) turn(t *testing.T, r *rand.Rand, book *ledger) {
	t.Helper()
	within := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	time.Sleep(within(time.Second))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if r.IntN(3) == 0 {
		time.AfterFunc(within(5*time.Second), func() { cancel(errMine) })
	}
	lock := e.s.Lock
	if r.IntN(5) == 0 {
		lock = e.s.TryLock
	}
	l, err := lock(ctx, "a", lease.WithOwner(strconv.Itoa(r.IntN(2))))
	if err != nil {
		told := errors.Is(err, errMine) || errors.Is(err, lease.ErrLocked) || errors.Is(err, rpctypes.ErrNoSpace)
		assert.True(t, told, "%v", err)
		return
	}
	book.granted(l)
	time.Sleep(within(time.Second))
	assert.NoError(t, context.Cause(l.Context())) //nolint:testifylint // not in the test's goroutine
	bound := t.Context()
	if r.IntN(3) == 0 {
		bound = timeout(t, within(3*time.Second))
	}
	if err := l.Unlock(bound); err != nil {
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	}
}
