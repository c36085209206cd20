package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// arrival is how the newer holder begins its tenure.
type arrival string

const (
	byClaim arrival = "Claim"
	byDo    arrival = "Do alone"
	byCheck arrival = "Check alone"
)

// arrive is the newer holder's first write, with the steps that the documents require.
func (r *rig) arrive(ctx context.Context, how arrival) error {
	form := do
	switch how {
	case byClaim:
		if err := r.claim(ctx, resource); err != nil {
			return err
		}
	case byCheck:
		form = check
	case byDo:
	}
	return persist(ctx, resource, r.claim, func() error { return r.increment(ctx, form, nowhere) })
}

// persist repeats a transaction as the documents require: it claims a token that was not claimed, and begins again after
// a conflict.
func persist(ctx context.Context, resource string, claim func(context.Context, string) error, transaction func() error) error {
	for {
		err := transaction()
		if errors.Is(err, sqlfence.ErrUnclaimed) {
			if err = claim(ctx, resource); err == nil {
				continue
			}
		}
		if !transient(err) || ctx.Err() != nil {
			return err
		}
	}
}

// everyStep calls test with each form and each step of it.
func everyStep(test func(how form, when step)) {
	for _, how := range forms {
		for _, when := range []step{beforeBegin, begun, guarded, hasRead, hasWritten, committed} {
			if when != begun || how.checks() { // Do begins and guards in one
				test(how, when)
			}
		}
	}
}

// holds reports whether the guard of a transaction holds at the step.
func (s step) holds() bool { return s == guarded || s == hasRead || s == hasWritten }

// before reports whether the step is before the transaction's guard.
func (s step) before() bool { return s == beforeBegin || s == begun }

// meeting says whether a call waits that comes while a guard holds.
type meeting string

const (
	waits    meeting = "the call waits"
	mayPass  meeting = "the call waits or returns"
	mustPass meeting = "the call does not wait"
)

// meets runs a transaction, and calls come at one of its steps.
func (r *rig) meets(t *testing.T, transaction func(at func(step)) error, when step, m meeting, come func() error) (err, arrived error) {
	t.Helper()
	answer, launched := make(chan error, 1), false
	err = transaction(func(at step) {
		if at != when || launched {
			return
		}
		launched = true
		if !when.holds() || m == mustPass {
			answer <- come()
			return
		}
		r.mustBeShut(t)
		go func() { answer <- come() }()
		r.awaitWaiterOrAnswer(t, answer)
		require.True(t, m == mayPass || len(answer) == 0 || r.kind == storetest.SQLite, "the other call has not waited")
	})
	require.True(t, launched)
	return err, <-answer
}

// incrementOf is a transaction for meets.
func (r *rig) incrementOf(ctx context.Context, how form) func(at func(step)) error {
	return func(at func(step)) error { return r.increment(ctx, how, at) }
}

// A newer holder comes at every step of an older one's transaction.
func TestMarks_newerHolderComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		everyStep(func(how form, when step) {
			for _, comes := range []arrival{byClaim, byDo, byCheck} {
				for _, first := range []bool{true, false} {
					if first && r.snapshots() && how.checks() {
						continue // there Check needs a claim, which makes the mark
					}
					name := fmt.Sprintf("%s, first mark %t, newer by %s %s", how, first, comes, when)
					t.Run(name, func(t *testing.T) { r.newerComes(t, how, comes, first, when) })
				}
			}
		})
	})
}

func (r *rig) newerComes(t *testing.T, how form, comes arrival, first bool, when step) {
	t.Helper()
	r.reset(t)
	if !first {
		require.NoError(t, r.claim(as(t, older), resource))
	}
	arrive := func() error { return r.arrive(as(t, newer), comes) }
	err, arrived := r.meets(t, r.incrementOf(as(t, older), how), when, waits, arrive)
	require.NoError(t, arrived, "the newer holder")
	accepted := int64(1) // the newer holder's
	if !when.before() {
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

// mustBeShut proves on SQLite, which does not show waiters, that a newer holder does not get in.
func (r *rig) mustBeShut(t *testing.T) {
	t.Helper()
	if r.kind != storetest.SQLite {
		return
	}
	store := *r.store
	store.DSN = strings.Replace(store.DSN, "busy_timeout(30000)", "busy_timeout(0)", 1)
	hasty, err := newSQL(store.DB(t), r.dialect(), sqlfence.Options{Attempts: 1})
	require.NoError(t, err)
	if err := hasty.claim(as(t, newer), resource); !errors.Is(err, fence.ErrOtherLock) {
		require.ErrorContains(t, err, "locked")
	}
}

// requireStale requires a refusal by the newer token. The transaction of a check may have failed instead: the caller
// begins again, and is refused then.
func requireStale(t *testing.T, err error, checks bool, want fence.StaleError) {
	t.Helper()
	if checks && transient(err) {
		return
	}
	stale, ok := errors.AsType[*fence.StaleError](err)
	require.True(t, ok, "%v", err)
	want.Token, want.Highest = older, newer
	require.Equal(t, want, *stale)
}

// requireRefused requires that the write mark has refused a writer.
func requireRefused(t *testing.T, err error, how form) {
	t.Helper()
	requireStale(t, err, how.checks(), fence.StaleError{Resource: resource})
}

// requireFenced requires that a reader's mark has refused a writer.
func requireFenced(t *testing.T, err error, how form) {
	t.Helper()
	requireStale(t, err, how.checks(), fence.StaleError{Resource: resource, ByReader: true})
}

// requireReaderRefused requires that the write mark has refused a reader.
func requireReaderRefused(t *testing.T, err error) {
	t.Helper()
	requireStale(t, err, true, fence.StaleError{Resource: resource, Read: true})
}

// An older holder writes or reads while a newer holder's transaction is under way, which then commits or rolls back.
func TestMarks_newerHolderIsInFlight(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range append([]form{checkRead}, forms...) {
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
	claimed := r.snapshots() // there Check refuses a token that was not claimed
	switch {
	case how == checkRead && !first:
		require.NoError(t, r.claimRead(asReader(t, older), resource))
	case how != checkRead && !first && !claimed:
		require.NoError(t, r.claim(as(t, older), resource))
	}
	if claimed {
		require.NoError(t, r.claim(as(t, newer), resource))
	}
	var n int64 // what a reader has read
	comes := func() error { return r.increment(as(t, older), how, nowhere) }
	if how == checkRead {
		ctx := asReader(t, older)
		comes = func() error {
			return r.checked(ctx, nowhere, func(tx conn) (err error) { n, err = read(ctx, tx); return err })
		}
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
		go func() { answer <- comes() }()
		r.awaitWaiterOrAnswer(t, answer)
		if !commits {
			cancel()
		}
	})
	require.True(t, launched)
	require.Equal(t, commits, err == nil, "%v", err)
	stays := commits || !newerHow.checks() || claimed // the newer mark: a claim, as of Do, is not rolled back
	switch got := <-answer; {
	case how == checkRead && got == nil && commits: // the reader was first
		require.Equal(t, storetest.SQLite, r.kind, "a reader has passed a newer writer")
		require.Zero(t, n)
	case how == checkRead && got == nil:
		require.True(t, newerHow.checks(), "the claim of Do is not rolled back")
		require.Zero(t, n)
	case how == checkRead:
		requireReaderRefused(t, got)
	case stays:
		requireRefused(t, got, how)
	case got != nil:
		require.True(t, transient(got), "%v", got)
	default:
		require.Equal(t, row{n: 1, last: int64(older)}, r.row(t), "the newer token was rolled back")
	}
	if how == checkRead && commits {
		_, err = r.arriveReader(asReader(t, older), !first)
		requireReaderRefused(t, err)
	}
	want := row{}
	if commits {
		want = row{n: 1, last: int64(newer)}
	}
	if stays {
		require.Equal(t, want, r.row(t))
	}
}

// awaitWaiterOrAnswer returns when the other holder waits or has its answer: two shared locks on the mark do not wait
// for each other.
func (r *rig) awaitWaiterOrAnswer(t *testing.T, answer chan error) {
	t.Helper()
	if r.kind == storetest.SQLite {
		return
	}
	require.Eventually(t, func() bool { return len(answer) > 0 || r.waiting(t) }, patience, time.Millisecond)
}

// After its guard, a transaction reads all that older holders have committed, on every run of the function: even if it
// has not claimed, and took its snapshot before it waited for them.
func TestMarks_readsAfterItsPredecessors(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range forms {
			for _, newerHow := range append([]form{checkRead}, forms...) {
				if newerHow == checkRead && r.kind == storetest.SQLite {
					continue // a reader has its snapshot
				}
				for _, claims := range []bool{false, true} { // true: it first gives up a claim that waits for them
					t.Run(fmt.Sprintf("%s, then %s, claim given up %t", how, newerHow, claims), func(t *testing.T) {
						r.readsAfter(t, how, newerHow, claims)
					})
				}
			}
		}
	})
}

func (r *rig) readsAfter(t *testing.T, how, newerHow form, claims bool) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	reads := make(chan int64, 100)
	arrived := make(chan error, 1)
	require.NoError(t, r.increment(as(t, older), how, func(at step) {
		if at != hasWritten {
			return
		}
		ctx, claim := as(t, newer), r.claim
		if newerHow == checkRead {
			ctx, claim = asReader(t, newer), r.claimRead
		}
		if claims {
			r.giveUp(t, ctx, claim)
		}
		body := func(ctx context.Context, tx conn) error {
			n, err := read(ctx, tx)
			reads <- n
			return err
		}
		go func() {
			if newerHow == checkRead {
				arrived <- r.checked(ctx, nowhere, func(tx conn) error { return body(ctx, tx) })
			} else {
				arrived <- r.run(ctx, newerHow, nowhere, body)
			}
		}()
		r.awaitWaiterOrAnswer(t, arrived)
	}))
	err := <-arrived
	close(reads)
	if err != nil { // refused, and nothing is read
		require.True(t, newerHow.checks(), "%v", err)
		require.True(t, transient(err) || errors.Is(err, sqlfence.ErrUnclaimed), "%v", err)
	} else {
		require.NotEmpty(t, reads)
	}
	for n := range reads {
		require.EqualValues(t, 1, n, "it has not read its predecessor's write")
	}
}

// giveUp cancels a claim that waits for a lock on the mark.
func (r *rig) giveUp(t *testing.T, ctx context.Context, claim func(context.Context, string) error) { //nolint:revive // t is first
	t.Helper()
	if r.kind == storetest.SQLite {
		return // it does not show waiters
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	claimed := make(chan error, 1)
	go func() { claimed <- claim(ctx, resource) }()
	r.awaitWaiter(t) // its query must work while the claim waits
	cancel()
	require.ErrorIs(t, <-claimed, context.Canceled)
}
