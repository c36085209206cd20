package sqlfence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// The check is not the first statement, and somebody writes between the read and the check, which notices it: a newer
// holder, or before the check of a reader or a path an older one, and only then the token is claimed.
func TestMarks_checkAfterARead(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
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
			require.NoError(t, r.increment(as(t, older), do, nowhere))
			if how == checkRead {
				require.NoError(t, r.claimRead(ctx, resource))
			} else {
				require.NoError(t, r.claimPath(ctx, resource))
			}
		default:
			require.NoError(t, r.claim(as(t, newer), resource))
			require.NoError(t, r.increment(as(t, newer), do, nowhere))
		}
	}
	err := r.transaction(ctx, func(tx conn) error {
		n, err := read(ctx, tx)
		require.NoError(t, err)
		if !r.readersLock() { // otherwise nobody can write in between
			between()
		}
		if err := r.guard(ctx, tx, resource, how); err != nil || how == checkRead {
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
