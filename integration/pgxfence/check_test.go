package pgxfence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
)

// A check that is not the first statement, with a claim in between: what was read before is not to be relied on.
func TestCheck_afterARead(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range []form{check, checkShared} {
			for _, token := range []fence.Token{older, newer} {
				t.Run(fmt.Sprintf("%s of %d", how, token), func(t *testing.T) {
					r.reset(t)
					require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
					ctx := as(t, token)
					err := r.transaction(ctx, func(tx pgx.Tx) error {
						n, err := read(ctx, tx)
						require.NoError(t, err)
						comes := fence.NewContext(ctx, newer)
						require.NoError(t, r.f.Claim(comes, r.pool, resource))
						require.NoError(t, r.increment(comes, do, nowhere))
						if err := r.verb(how)(ctx, tx, resource); err != nil {
							return err
						}
						return write(ctx, tx, n, token)
					})
					if token == newer && !r.snapshots() {
						// The documented limit: these levels keep no snapshot that could be compared.
						require.NoError(t, err)
					} else {
						noticed := errors.Is(err, pgxfence.ErrUnclaimed) || errors.Is(err, fence.ErrStale) || transient(err)
						require.True(t, noticed, "%v", err)
					}
					require.Zero(t, r.row(t).stale)
				})
			}
		}
	})
}

// A transaction of a new token without a claim: at the levels with a snapshot it may read what is out of date.
func TestCheck_unclaimed(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
		err := r.increment(as(t, newer), check, nowhere)
		if !r.snapshots() {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, pgxfence.ErrUnclaimed)
		require.ErrorContains(t, err, "pgxfence: ")
		require.Zero(t, r.row(t).n)
	})
}

// A guard inside a savepoint holds until the transaction ends, unless the savepoint is rolled back.
func TestCheck_inASavepoint(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
		claimed := make(chan error, 1)
		require.NoError(t, r.transaction(as(t, older), func(tx pgx.Tx) error {
			inner, err := tx.Begin(t.Context())
			require.NoError(t, err)
			require.NoError(t, r.f.Check(as(t, older), inner, resource))
			require.NoError(t, write(t.Context(), inner, 0, older))
			require.NoError(t, inner.Commit(t.Context()))
			go func() { claimed <- r.f.Claim(as(t, newer), r.pool, resource) }()
			r.awaitWaiter(t)
			return nil
		}))
		require.NoError(t, <-claimed)
		require.Equal(t, row{n: 1, last: int64(older)}, r.row(t))
	})
}

// The naive form, on the same server and by the same rig, lets a stale write be committed: what the other tests look
// for does happen where the guard is missing.
func TestControl_selectThenUpdate(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
		err := r.transaction(as(t, older), func(tx pgx.Tx) error {
			var seen int64
			require.NoError(t, tx.QueryRow(t.Context(),
				"SELECT token FROM "+pgxfence.DefaultTable+" WHERE resource = $1", resource).Scan(&seen))
			require.LessOrEqual(t, seen, int64(older), "the naive check passes")
			require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
			require.Zero(t, r.row(t).n, "what the newer holder reads after its claim")
			return write(t.Context(), tx, 0, older)
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, r.row(t).n, "a stale write after the claim had returned")
	})
}
