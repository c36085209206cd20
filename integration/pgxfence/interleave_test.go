package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// arrival is how the newer holder begins its tenure.
type arrival string

const (
	byClaim    arrival = "Claim"
	bySQLClaim arrival = "Claim of sqlfence"
	byDo       arrival = "Do alone"
	byCheck    arrival = "Check alone"
)

// claimThroughSQL is a claim by another program, which uses database/sql.
func claimThroughSQL(t *testing.T, store *storetest.Store) func(context.Context) error {
	t.Helper()
	db := store.DB(t)
	f, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
	require.NoError(t, err)
	return func(ctx context.Context) error { return f.Claim(ctx, db, resource) }
}

// arrive is the newer holder's first write, by all that the documents tell it to do on the way.
func (r *rig) arrive(ctx context.Context, how arrival, sqlClaim func(context.Context) error) error {
	form := do
	var err error
	switch how {
	case byClaim:
		err = r.f.Claim(ctx, r.pool, resource)
	case bySQLClaim:
		err = sqlClaim(ctx)
	case byCheck:
		form = check
	case byDo:
	}
	for err == nil {
		err = r.increment(ctx, form, nowhere)
		switch {
		case errors.Is(err, pgxfence.ErrUnclaimed):
			err = r.f.Claim(ctx, r.pool, resource)
		case transient(err) && ctx.Err() == nil:
			err = nil
		default:
			return err
		}
	}
	return err
}

// A newer holder comes at every step of an older one's transaction.
func TestFence_newerHolderComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		sqlClaim := claimThroughSQL(t, r.store)
		for _, how := range forms {
			for _, comes := range []arrival{byClaim, bySQLClaim, byDo, byCheck} {
				for _, first := range []bool{true, false} {
					for _, when := range []step{beforeBegin, begun, guarded, hasRead, hasWritten, committed} {
						if when == begun && !how.checks() {
							continue // Do begins and guards in one
						}
						name := fmt.Sprintf("%s, first mark %t, newer by %s %s", how, first, comes, when)
						t.Run(name, func(t *testing.T) {
							r.newerComes(t, how, first, when, func() error { return r.arrive(as(t, newer), comes, sqlClaim) })
						})
					}
				}
			}
		}
	})
}

func (r *rig) newerComes(t *testing.T, how form, first bool, when step, arrive func() error) {
	t.Helper()
	r.reset(t)
	if !first || r.snapshots() && how.checks() {
		require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
	}
	holds := when == guarded || when == hasRead || when == hasWritten
	arrived := make(chan error, 1)
	launched := false
	err := r.increment(as(t, older), how, func(at step) {
		if at != when || launched {
			return
		}
		launched = true
		if !holds {
			arrived <- arrive()
			return
		}
		go func() { arrived <- arrive() }()
		r.awaitWaiter(t)
	})
	require.True(t, launched)
	require.NoError(t, <-arrived, "the newer holder")
	accepted := int64(1) // the newer holder's
	if holds || when == committed {
		require.NoError(t, err, "the older holder was first")
		accepted++
	} else {
		requireRefused(t, err, how)
	}
	require.Equal(t, row{n: accepted, last: int64(newer), stale: 0}, r.row(t))

	requireRefused(t, r.increment(as(t, older), how, nowhere), how)
	require.NoError(t, r.increment(as(t, newer), how, nowhere), "an equal token")
	require.Equal(t, row{n: accepted + 1, last: int64(newer), stale: 0}, r.row(t))
}

func requireRefused(t *testing.T, err error, how form) {
	t.Helper()
	if how.checks() && transient(err) {
		return // the caller begins again, and is told then
	}
	stale, ok := errors.AsType[*fence.StaleError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, fence.StaleError{Resource: resource, Token: older, Highest: newer}, *stale)
}

// A newer holder's transaction is under way, and nobody knows yet how it ends, when the older one comes.
func TestFence_newerHolderIsInFlight(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range forms {
			for _, newerHow := range forms {
				for _, first := range []bool{true, false} {
					for _, commits := range []bool{true, false} {
						name := fmt.Sprintf("%s, first mark %t, newer by %s, commits %t", how, first, newerHow, commits)
						t.Run(name, func(t *testing.T) { r.newerInFlight(t, how, newerHow, first, commits) })
					}
				}
			}
		}
	})
}

func (r *rig) newerInFlight(t *testing.T, how, newerHow form, first, commits bool) {
	t.Helper()
	r.reset(t)
	claimed := r.snapshots() // there a Check alone is not let pass
	switch {
	case claimed:
		require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
	case !first:
		require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
	}
	ctx, cancel := context.WithCancel(as(t, newer))
	defer cancel()
	answer := make(chan error, 1)
	launched := false
	err := r.increment(ctx, newerHow, func(at step) {
		if at != hasWritten || launched {
			return
		}
		launched = true
		go func() { answer <- r.increment(as(t, older), how, nowhere) }()
		r.awaitWaiterOrAnswer(t, answer)
		if !commits {
			cancel()
		}
	})
	require.True(t, launched)
	got := <-answer
	if commits {
		require.NoError(t, err)
		requireRefused(t, got, how)
		require.Equal(t, row{n: 1, last: int64(newer), stale: 0}, r.row(t))
		return
	}
	require.Error(t, err)
	if !newerHow.checks() || claimed {
		requireRefused(t, got, how) // Do has claimed first, and that stays
		require.Equal(t, row{}, r.row(t))
		return
	}
	if got == nil {
		require.Equal(t, row{n: 1, last: int64(older), stale: 0}, r.row(t), "the newer token never was")
		return
	}
	require.True(t, transient(got), "%v", got)
}

// awaitWaiterOrAnswer returns when the other holder waits or has its answer: it does not have to wait if the two only
// share the mark.
func (r *rig) awaitWaiterOrAnswer(t *testing.T, answer chan error) {
	t.Helper()
	require.Eventually(t, func() bool { return len(answer) > 0 || r.waiting(t) }, patience, time.Millisecond)
}

// What a transaction reads after its guard is nothing older than what older holders have committed, on every run of the
// function: not even if it has not claimed, and its snapshot was taken while it waited for them.
func TestFence_readsAfterItsPredecessors(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range forms {
			for _, newerHow := range forms {
				t.Run(fmt.Sprintf("%s, then %s", how, newerHow), func(t *testing.T) { r.readsAfter(t, how, newerHow) })
			}
		}
	})
}

func (r *rig) readsAfter(t *testing.T, how, newerHow form) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
	reads := make(chan int64, 100)
	arrived := make(chan error, 1)
	require.NoError(t, r.increment(as(t, older), how, func(at step) {
		if at != hasWritten {
			return
		}
		go func() {
			arrived <- r.run(as(t, newer), newerHow, nowhere, func(ctx context.Context, tx pgx.Tx) error {
				n, err := read(ctx, tx)
				reads <- n
				return err
			})
		}()
		r.awaitWaiterOrAnswer(t, arrived)
	}))
	err := <-arrived
	close(reads)
	if err != nil { // refused, and nothing is read
		require.True(t, newerHow.checks(), "%v", err)
		require.True(t, transient(err) || errors.Is(err, pgxfence.ErrUnclaimed), "%v", err)
	} else {
		require.NotEmpty(t, reads)
	}
	for n := range reads {
		require.EqualValues(t, 1, n, "it has read past its predecessor's write")
	}
}
