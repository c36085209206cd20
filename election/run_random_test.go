package election_test

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

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// ledger checks that there are no two leaders at a time, and that tokens grow.
type ledger struct {
	t *testing.T
	// If somebody deletes a leader's key, the next candidate leads before the old leader can know. A leader counts only
	// if it still leads after the grace time.
	grace time.Duration

	mu     sync.Mutex      // guards the fields below
	leader context.Context //nolint:containedctx // the context of the last lead
	last   fence.Token
	terms  int
}

func (g *ledger) leads(ctx context.Context, token fence.Token) {
	if g.grace > 0 {
		time.Sleep(g.grace)
		if ctx.Err() != nil {
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leader != nil {
		assert.Error(g.t, g.leader.Err(), "two leaders") //nolint:testifylint // not in the test's goroutine
	}
	assert.Greater(g.t, token, g.last)
	g.leader, g.last = ctx, token
	g.terms++
}

// Candidates lead in turn for four hours, over networks that fail, with leads that return late. A Run never runs lead
// twice at a time, and two contexts are never live at once. Every loss of a leadership is reported once.
func TestRun_whateverHappens(t *testing.T) {
	var terms, lost int
	for seed := range uint64(20) {
		inBubble(t, strconv.FormatUint(seed, 10), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			srv := newServer(t)
			book := &ledger{t: t}
			meddled := seed%2 == 1
			if meddled {
				book.grace = time.Second
			}
			ctx, stop := context.WithCancelCause(t.Context())
			var runs sync.WaitGroup
			var all []*actor
			for range 3 {
				p := newProcess(t, srv, lease.Options{TTL: 2 * time.Minute})
				for range 1 + r.IntN(2) {
					a := &actor{t: t, p: p, r: rand.New(rand.NewPCG(r.Uint64(), 2)), book: book}
					all = append(all, a)
					runs.Go(func() { a.run(ctx) })
				}
			}
			for end := time.Now().Add(4 * time.Hour); time.Now().Before(end); {
				disturb(r, all[r.IntN(len(all))].p, meddled)
			}
			stop(errMine)
			runs.Wait()
			for _, a := range all {
				require.ErrorIs(t, a.err, errMine)
				told := a.told
				if errors.Is(a.err, lease.ErrLost) { // reported by Run itself, at the end
					told++
				}
				require.GreaterOrEqual(t, told, a.losses)
				require.LessOrEqual(t, told, a.terms)
				lost += a.losses
			}
			terms += book.terms
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Empty(t, all[0].p.keys())
			require.NotZero(t, book.terms)
		})
	}
	t.Log(terms, "leaderships,", lost, "lost")
	require.Greater(t, lost, 50)
}

// disturb does something to a process, and waits.
func disturb(r *rand.Rand, p *process, meddled bool) {
	within := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	n := 4
	if meddled {
		n = 6
	}
	switch r.IntN(n) {
	case 0:
		p.c.Cut()
		time.Sleep(within(4 * time.Minute))
		p.c.Restore()
	case 1:
		// Watches are spared: a stream never loses a message without breaking.
		remove := p.c.Inject(fakeetcd.Any, fakeetcd.Fault{
			Lose: fakeetcd.Answer, After: within(10 * time.Second),
			Match: func(call fakeetcd.Call) bool { return call.Method != fakeetcd.Watch },
		})
		time.Sleep(within(4 * time.Minute))
		remove()
	case 2:
		p.srv.BreakWatches(fakeetcd.ErrUnavailable)
		p.srv.ChangeLeader()
	case 3:
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1 + r.IntN(3), Before: within(10 * time.Second), Late: true})
	case 4:
		_ = p.srv.Revoke(p.s.Status().LeaseID) // fails if the lease is gone
	case 5:
		if keys := p.keys(); len(keys) > 0 {
			p.srv.Delete(keys[r.IntN(len(keys))])
		}
	}
	time.Sleep(within(10 * time.Minute))
}

// actor is a Run whose lead stays for a while.
type actor struct {
	t    *testing.T
	p    *process
	r    *rand.Rand
	book *ledger

	mu                  sync.Mutex // guards the fields below
	leading             bool
	terms, losses, told int
	err                 error
}

func (a *actor) run(ctx context.Context) {
	onLost := func(err error) {
		assert.ErrorIs(a.t, err, lease.ErrLost) //nolint:testifylint // not in the test's goroutine
		a.mu.Lock()
		defer a.mu.Unlock()
		assert.False(a.t, a.leading)
		a.told++
	}
	err := election.Run(ctx, a.p.s, "x", election.Options{Priority: a.r.IntN(3)}, a.lead, election.WithRejoin(), election.WithOnLost(onLost))
	a.mu.Lock()
	defer a.mu.Unlock()
	assert.False(a.t, a.leading, "lead is running and Run has returned")
	a.err = err
}

func (a *actor) lead(ctx context.Context, token fence.Token) error {
	a.mu.Lock()
	assert.False(a.t, a.leading, "lead is running already")
	a.leading = true
	a.terms++
	a.mu.Unlock()
	a.book.leads(ctx, token)

	work := time.NewTimer(time.Duration(a.r.Int64N(int64(time.Hour))))
	defer work.Stop()
	select {
	case <-work.C:
	case <-ctx.Done():
		time.Sleep(time.Duration(a.r.Int64N(int64(2 * time.Minute)))) // a lead that returns late
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leading = false
	if errors.Is(context.Cause(ctx), lease.ErrLost) {
		a.losses++
	}
	return ctx.Err()
}
