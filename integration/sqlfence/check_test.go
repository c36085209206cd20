package sqlfence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// The check is not the first statement, and a newer holder writes between the read and the check: the check notices it.
func TestCheck_afterARead(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range []form{check, checkShared} {
			for _, token := range []fence.Token{older, newer} {
				t.Run(fmt.Sprintf("%s of %d", how, token), func(t *testing.T) { r.checkAfterARead(t, how, token) })
			}
		}
	})
}

func (r *rig) checkAfterARead(t *testing.T, how form, token fence.Token) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	ctx := as(t, token)
	err := r.transaction(ctx, func(tx conn) error {
		n, err := read(ctx, tx)
		require.NoError(t, err)
		if !r.readersLock() {
			comes := fence.NewContext(ctx, newer)
			require.NoError(t, r.claim(comes, resource))
			require.NoError(t, r.increment(comes, do, nowhere))
		}
		if err := r.check(ctx, tx, resource, how.shared()); err != nil {
			return err
		}
		return write(ctx, tx, n, token)
	})
	if r.readersLock() || token == newer && r.noSnapshot() {
		// The documented limit: these levels keep no snapshot that could be compared.
		require.NoError(t, err)
	} else {
		noticed := errors.Is(err, sqlfence.ErrUnclaimed) || errors.Is(err, fence.ErrStale) || transient(err)
		require.True(t, noticed, "%v", err)
	}
	require.Zero(t, r.row(t).stale)
}

// The same, but it is an older writer that writes in between, and the token is claimed before the check.
func TestMarks_afterAReadUnderAnOlderToken(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range []form{checkRead, checkPath} {
			if !r.readersLock() { // otherwise nobody can write in between
				t.Run(string(how), func(t *testing.T) { r.olderWritesBetween(t, how) })
			}
		}
	})
}

func (r *rig) olderWritesBetween(t *testing.T, how form) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	writer, ctx, claim := as(t, older), as(t, newer), r.claimPath
	if how == checkRead {
		ctx, claim = asReader(t, newer), r.claimRead
	}
	err := r.transaction(ctx, func(tx conn) error {
		n, err := read(ctx, tx)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, r.increment(writer, do, nowhere))
		require.NoError(t, claim(ctx, resource))
		return r.guard(ctx, tx, resource, how)
	})
	if r.noSnapshot() {
		require.NoError(t, err, "the documented limit: these levels keep no snapshot that could be compared")
		return
	}
	require.True(t, errors.Is(err, sqlfence.ErrUnclaimed) || transient(err), "%v", err)
}

// A new token was not claimed. At PostgreSQL's levels with a snapshot its transaction may read old data, so Check
// refuses it.
func TestCheck_unclaimed(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		err := r.increment(as(t, newer), check, nowhere)
		if !r.snapshots() {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed)
		require.Zero(t, r.row(t).n)
	})
}
