package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// The check is not the first statement, and somebody writes between the read and the check, which notices it: a newer
// holder, or before the check of a reader or a path an older one, and only then the token is claimed.
func TestMarks_checkAfterARead(t *testing.T) {
	at(t, places, func(t *testing.T, r *rig) {
		for _, how := range []form{check, checkShared, checkRead, checkPath} {
			for _, token := range []fence.Token{older, newer} {
				if how == check || how == checkShared || token == newer && !r.readersLock() {
					t.Run(fmt.Sprintf("%s of %d", how, token), func(t *testing.T) { r.checkAfterARead(t, how, token) })
				}
			}
		}
	})
}

func (r *rig) checkAfterARead(t *testing.T, how form, token fence.Token) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	ctx := as(t, token)
	if how == checkRead {
		ctx = asReader(t, token)
	}
	between := func() {
		switch how {
		case checkRead, checkPath:
			require.NoError(t, r.increment(as(t, older), do))
			if how == checkRead {
				require.NoError(t, r.claimRead(ctx, resource))
			} else {
				require.NoError(t, r.claimPath(ctx, resource))
			}
		default:
			require.NoError(t, r.claim(as(t, newer), resource))
			require.NoError(t, r.increment(as(t, newer), do))
		}
	}
	err := r.transaction(ctx, func(tx conn) error {
		n, err := read(ctx, tx)
		require.NoError(t, err)
		if !r.readersLock() { // otherwise nobody can write in between
			between()
		}
		if err := r.guard[how](ctx, tx, resource); err != nil || how == checkRead {
			return err
		}
		return write(ctx, tx, n, token)
	})
	if r.readersLock() || token == newer && r.noSnapshot() {
		// The documented limit: these levels keep no snapshot that could be compared.
		require.NoError(t, err)
	} else {
		noticed := errors.Is(err, sqlfence.ErrUnclaimed) || errors.Is(err, fence.ErrStale) && token == older || transient(err)
		require.True(t, noticed, "%v", err)
	}
	require.Zero(t, r.row(t).stale)
}

// A new token was not claimed. At PostgreSQL's levels with a snapshot its transaction may read old data, so Check
// refuses it.
func TestCheck_unclaimed(t *testing.T) {
	at(t, append(inTurn, pgxSnapshot), func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		err := r.increment(as(t, newer), check)
		if !r.snapshots() {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed)
		require.Zero(t, r.row(t).n)
	})
}

// There are two ways out after a token was accepted that was never granted: the next era, and lower marks by hand.
func TestMarks_absurdToken(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		all := r.with(t, sqlfence.Options{MaxEra: 32767})
		require.NoError(t, all.claim(as(t, 20<<48|1), resource))
		require.ErrorIs(t, r.claim(as(t, older), resource), fence.ErrStale)
		require.NoError(t, all.claim(as(t, 21<<48|1), resource), "in the next era")
		require.NoError(t, all.claim(as(t, math.MaxInt64), resource))
		require.NoError(t, all.claimRead(asReader(t, math.MaxInt64), resource))

		names := "'accounts'"
		if r.dialect == sqlfence.PostgreSQL {
			names = `'accounts', E'\x01accounts'`
		}
		r.must(t, "UPDATE leasefence_marks SET token = 10, read_token = 10 WHERE resource IN ("+names+")")
		for _, how := range forms {
			require.NoError(t, r.increment(as(t, older), how), "%s", how)
		}
		require.NoError(t, r.claimRead(asReader(t, older), resource))
		require.NoError(t, r.claim(as(t, newer), resource))
	})
}

// Two transactions of one holder, of two branches or of readers are inside their guards at once. A newer claim waits
// for both, and refuses later ones: otherwise transactions that overlap would keep it waiting.
func TestMarks_sideBySide(t *testing.T) {
	at(t, places, func(t *testing.T, r *rig) {
		for _, how := range []form{doShared, checkShared, checkPath, checkRead} {
			for _, newerReads := range []bool{true, false} {
				switch {
				case r.dialect == sqlfence.SQLite && how != checkRead: // one writer at a time
				case newerReads && !how.shared(): // it conflicts with neither
				default:
					name := fmt.Sprintf("%s, newer reader %t", how, newerReads)
					t.Run(name, func(t *testing.T) { r.sideBySide(t, how, newerReads) })
				}
			}
		}
	})
}

func (r *rig) sideBySide(t *testing.T, how form, newerReads bool) {
	t.Helper()
	r.reset(t)
	nodes, tokens, tenure, claim := [2]string{resource, resource}, [2]fence.Token{older, older}, as, r.claimPath
	switch how {
	case checkPath:
		nodes = [2]string{resource + "/b", resource + "/c"}
	case checkRead:
		tokens, tenure, claim = [2]fence.Token{older + 1, older}, asReader, r.claimRead
	}
	// Otherwise the two would claim, and a claim waits for transactions with a lock on the mark.
	for i, node := range nodes {
		require.NoError(t, claim(tenure(t, tokens[i]), node))
	}
	run := func(i int, body func(context.Context, conn) error) error {
		return r.run(tenure(t, tokens[i]), nodes[i], how, body)
	}
	claimed, third := make(chan error, 1), make(chan error, 1)
	newerClaims := func() {
		if newerReads {
			claimed <- r.claimRead(asReader(t, newer), resource)
		} else {
			claimed <- r.claimPath(as(t, newer), resource)
		}
	}
	both := func(context.Context, conn) error {
		if how != checkPath {
			require.NoError(t, claim(tenure(t, tokens[0]), resource), "their own claim does not wait for them")
		}
		if how == checkRead && r.dialect != sqlfence.MySQL && r.journal != "delete" {
			require.NoError(t, r.claimRead(asReader(t, older+2), resource), "nor does a newer reader's")
		}
		if r.journal == "wal" {
			newerClaims() // they have their snapshots
		} else {
			go newerClaims()
		}
		r.awaitWaiter(t)
		go func() { third <- run(0, nothing) }()
		if r.dialect == sqlfence.PostgreSQL && how != checkPath {
			// On MariaDB it queues behind the claim, and a path's guard queues behind the first of its node.
			require.ErrorIs(t, <-third, fence.ErrStale, "a later transaction passes the claim")
			third <- fence.ErrStale
		}
		return nil
	}
	require.NoError(t, run(1, func(context.Context, conn) error {
		require.NoError(t, run(0, both), "one waits for the other")
		if r.dialect != sqlfence.SQLite {
			r.awaitWaiter(t)
			require.Empty(t, claimed, "the claim has not waited for the second")
		}
		return nil
	}))
	require.NoError(t, <-claimed)
	err := <-third
	if r.journal != "delete" && (!how.checks() || !transient(err)) { // there it may have come before the claim
		require.ErrorIs(t, err, fence.ErrStale)
	}
	require.ErrorIs(t, run(0, nothing), fence.ErrStale)
}

// On the same servers and with the same rig, naive checks let a stale write be committed. So the fault that the other
// tests look for does happen without the guard.

const mark = "SELECT token FROM " + sqlfence.DefaultTable + " WHERE resource = 'accounts'"

// Reads the mark, then writes, in one transaction. The write does not notice a claim in between. On SQLite, and on
// MariaDB where a plain read locks, it does: there the read and the write are not in one transaction.
func TestControl_selectThenUpdate(t *testing.T) {
	at(t, places, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.claim(as(t, older), resource))
		naive := func(q conn) error {
			var seen int64
			require.NoError(t, q.scan(as(t, older), mark, &seen))
			require.LessOrEqual(t, seen, int64(older), "the naive check passes")
			require.NoError(t, r.claim(as(t, newer), resource))
			require.Zero(t, r.row(t).n, "what the newer holder reads after its claim")
			return write(as(t, older), q, 0, older)
		}
		if r.readersLock() || r.dialect == sqlfence.SQLite {
			require.NoError(t, naive(r))
		} else {
			require.NoError(t, r.transaction(as(t, older), naive))
		}
		require.EqualValues(t, 1, r.row(t).n, "a stale write after the claim had returned")
	})
}

// Compares the mark by EXISTS in the UPDATE itself. At read committed PostgreSQL then reads the newest version of the
// row that it had to wait for, and an old version of the mark. Elsewhere the statement fails or sees the new mark.
func TestControl_existsInTheUpdate(t *testing.T) {
	r := newRig(t, readCommitted)
	require.NoError(t, r.claim(as(t, older), resource))
	naive := make(chan error, 1)
	require.NoError(t, r.run(as(t, newer), resource, check, func(ctx context.Context, tx conn) error {
		if err := write(ctx, tx, 0, newer); err != nil {
			return err
		}
		go func() {
			naive <- r.exec(as(t, older), "UPDATE data SET stale = stale + 1 WHERE id = 1 AND EXISTS ("+
				"SELECT 1 FROM "+sqlfence.DefaultTable+" WHERE resource = 'accounts' AND token <= 10)")
		}()
		r.awaitWaiter(t)
		return nil
	}))
	require.NoError(t, <-naive)
	require.EqualValues(t, 1, r.row(t).stale, "a stale write after the newer one was committed")
}
