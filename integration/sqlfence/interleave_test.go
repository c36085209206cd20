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

// arrival is how a newer holder comes: with a claim, as the documents require, with a move to its lock, or with
// neither.
type arrival struct {
	how           form
	claims, moves bool
}

var arrivals = []arrival{
	{how: do, claims: true},
	{how: do, moves: true},
	{how: checkRead, claims: true},
	{how: checkRead},
	{how: do},
	{how: doShared},
	{how: check},
	{how: checkShared},
}

// arrive is the first transaction of a holder. It returns what it has read.
func (r *rig) arrive(t *testing.T, token fence.Token, a arrival) (n int64, err error) {
	t.Helper()
	ctx, claim := as(t, token), r.claim
	switch {
	case a.how == checkRead:
		ctx, claim = asReader(t, token), r.claimRead
	case a.moves:
		ctx, claim = of(t, "ledger", token), r.move
	}
	if a.claims || a.moves {
		if err := claim(ctx, resource); err != nil {
			return 0, err
		}
	}
	err = persist(ctx, resource, claim, func() (err error) {
		n, err = r.incrementOn(ctx, resource, a.how, nowhere)
		return err
	})
	return n, err
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

// A newer writer or reader comes at every step of an older writer's transaction: it waits for the transaction, reads
// what it has written, and later ones are refused.
func TestMarks_newerHolderComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		everyStep(func(how form, when step) {
			for _, comes := range arrivals {
				for _, first := range []bool{true, false} {
					if first && r.snapshots() && how.checks() {
						continue // there Check needs a claim, which makes the mark
					}
					name := fmt.Sprintf("%s, first mark %t, newer by %+v %s", how, first, comes, when)
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
	var n int64
	err, arrived := r.meets(t, r.incrementOf(as(t, older), how), when, waits, func() (err error) {
		n, err = r.arrive(t, newer, comes)
		return err
	})
	require.NoError(t, arrived, "the newer holder")
	reads := comes.how == checkRead
	accepted := int64(0)
	if when.before() {
		requireRefused(t, err, how, reads)
	} else {
		require.NoError(t, err, "the older holder was first")
		accepted = 1
	}
	require.Equal(t, accepted, n, "what the newer holder has read")
	requireRefused(t, r.increment(as(t, older), how, nowhere), how, reads)
	if !reads {
		accepted++ // its own
	}
	got := r.row(t)
	require.Equal(t, accepted, got.n)
	require.Zero(t, got.stale)
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

// requireRefused requires that a newer writer or reader has refused a writer.
func requireRefused(t *testing.T, err error, how form, byReader bool) {
	t.Helper()
	requireStale(t, err, how.checks(), fence.StaleError{Resource: resource, ByReader: byReader})
}

// requireReaderRefused requires that the write mark has refused a reader.
func requireReaderRefused(t *testing.T, err error) {
	t.Helper()
	requireStale(t, err, true, fence.StaleError{Resource: resource, Read: true})
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
