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
	"github.com/leasefence/leasefence/internal/fencetest"
)

// arrival is how another holder comes, with the token of a lock: with a claim, as the documents require, with a move to
// its lock, or with neither. Without a form it does no more.
type arrival struct {
	how           form
	claims, moves bool
	lock          string
}

var arrivals = []arrival{
	{how: do, claims: true},
	{how: do, moves: true, lock: "ledger"},
	{how: checkRead, claims: true},
	{how: checkRead},
	{how: do},
	{how: doShared},
	{how: check},
	{how: checkShared},
	{claims: true, lock: "report"},
}

func (a arrival) verb() fencetest.Verb {
	return fencetest.Verb{Reads: a.how == checkRead, Moves: a.moves}
}

// arrive is the first transaction of a holder. It returns what it has read.
func (r *rig) arrive(t *testing.T, token fence.Token, a arrival) (n int64, err error) {
	t.Helper()
	ctx, claim := holding(t, a.verb(), token, a.lock), r.claim
	switch {
	case a.how == checkRead:
		claim = r.claimRead
	case a.moves:
		claim = r.move
	}
	if a.claims || a.moves {
		if err := claim(ctx, resource); err != nil || a.how == "" {
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

// Another holder comes at every step of the transaction of a writer or a reader: a newer writer or reader, a holder of
// another lock, or one that moves the resource to its lock. It waits for the transaction and reads what that has written.
// The first of the two is decided by the marks as they were, the second by what the first has left.
func TestMarks_anotherComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range append([]form{checkRead}, forms...) {
			for _, when := range []step{beforeBegin, begun, guarded, hasRead, hasWritten, committed} {
				for _, comes := range arrivals {
					befores := []fencetest.Marks{{}, {Write: older}}
					switch {
					case when == begun && !how.checks(), how == checkRead && (when == hasWritten || comes.how == checkRead || comes.lock != ""):
						continue // Do begins and guards in one; readers do not write and do not refuse each other
					case comes.lock == "report":
						befores = []fencetest.Marks{{Write: older}, {Write: older, Lock: "accounts"}}
					case how == checkRead:
						befores[1] = fencetest.Marks{Read: older}
					}
					for _, before := range befores {
						if before == (fencetest.Marks{}) && r.snapshots() && how.checks() {
							continue // there a check needs a claim, which makes the mark
						}
						name := fmt.Sprintf("%s at %+v, then %+v %s", how, before, comes, when)
						t.Run(name, func(t *testing.T) { r.anotherComes(t, how, before, comes, when) })
					}
				}
			}
		}
	})
}

func (r *rig) anotherComes(t *testing.T, how form, before fencetest.Marks, comes arrival, when step) {
	t.Helper()
	r.reset(t)
	v, lock, claim, m := fencetest.Verb{Reads: how == checkRead}, "", r.claim, waits
	if v.Reads {
		claim = r.claimRead
	}
	switch {
	case comes.lock == "report":
		lock, m = "accounts", mayPass // the claim may be refused by its look at the marks, without waiting
	case v.Reads && r.journal == "wal" && before.Read != 0:
		m = mustPass // the transaction keeps its snapshot
	}
	if before != (fencetest.Marks{}) {
		require.NoError(t, claim(holding(t, v, older, before.Lock), resource))
	}
	ctx := holding(t, v, older, lock)
	var n int64
	err, arrived := r.meets(t, func(at func(step)) error { return r.increment(ctx, how, at) }, when, m, func() (err error) {
		n, err = r.arrive(t, newer, comes)
		return err
	})
	own := func(m fencetest.Marks) (fencetest.Marks, error) { return m.After(v, older, lock, false) }
	other := func(m fencetest.Marks) (fencetest.Marks, error) {
		return m.After(comes.verb(), newer, comes.lock, false)
	}
	var want, wantArrived error
	after, written := before, int64(0)
	if when.before() {
		after, wantArrived = other(after)
	}
	if after, want = own(after); want == nil && !v.Reads {
		written++
	}
	if !when.before() {
		after, wantArrived = other(after)
	}
	requireOutcome(t, want, err, how)
	fencetest.RequireRefusal(t, wantArrived, arrived, resource, "the other holder")
	if wantArrived == nil && comes.how != "" {
		require.Equal(t, written, n, "what the other holder has read")
		if comes.how != checkRead {
			written++
		}
	}
	require.Equal(t, after, r.marks(t, resource).Normal())
	_, want = own(after)
	fencetest.RequireRefusal(t, want, claim(ctx, resource), resource, "a claim")
	requireOutcome(t, want, r.increment(ctx, how, nowhere), how)
	if want == nil && !v.Reads {
		written++
	}
	got := r.row(t)
	require.Equal(t, written, got.n)
	require.Zero(t, got.stale)
	if v.Reads {
		n, err := r.arrive(t, newer+1, arrival{how: checkRead, claims: true})
		require.NoError(t, err)
		require.Equal(t, written, n)
	}
}

// requireOutcome compares the result of a transaction with the rule. Where it is to be refused, that of a check may have
// failed instead: the caller begins again, and is refused then.
func requireOutcome(t *testing.T, want, err error, how form) {
	t.Helper()
	if want == nil || !how.checks() || !transient(err) {
		fencetest.RequireRefusal(t, want, err, resource, string(how))
	}
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

// stale is the refusal of the older writer by the newer one, or by a newer reader.
func stale(byReader bool) error {
	return &fence.StaleError{Token: older, Highest: newer, ByReader: byReader}
}

// staleReader is the refusal of the older reader by the newer writer.
func staleReader() error { return &fence.StaleError{Token: older, Highest: newer, Read: true} }

// awaitWaiterOrAnswer returns when the other holder waits or has its answer: two shared locks on the mark do not wait
// for each other.
func (r *rig) awaitWaiterOrAnswer(t *testing.T, answer chan error) {
	t.Helper()
	if r.kind == storetest.SQLite {
		return
	}
	require.Eventually(t, func() bool { return len(answer) > 0 || r.waiting(t) }, patience, time.Millisecond)
}
