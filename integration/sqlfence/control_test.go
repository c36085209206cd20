package sqlfence_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// The naive forms, on the same servers and by the same rig, let a stale write be committed: what the other tests look
// for does happen where the guard is missing.

const mark = "SELECT token FROM " + sqlfence.DefaultTable + " WHERE resource = 'accounts'"

// Look at the mark, then write, in one transaction. A claim in between is not noticed. SQLite's write lock notices it,
// and so does MariaDB when a plain read locks.
func TestControl_selectThenUpdate(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.f.Claim(as(t, older), r.db, resource))
		if r.readersLock() || r.kind == storetest.SQLite {
			r.selectThenUpdateApart(t)
			return
		}
		require.NoError(t, r.transaction(as(t, older), func(tx *sql.Tx) error {
			return r.naive(t, tx, tx)
		}))
		require.EqualValues(t, 1, r.row(t).n, "a stale write after the claim had returned")
	})
}

// selectThenUpdateApart does it in two transactions.
func (r *rig) selectThenUpdateApart(t *testing.T) {
	t.Helper()
	require.NoError(t, r.naive(t, r.db, r.db))
	require.EqualValues(t, 1, r.row(t).n, "a stale write after the claim had returned")
}

func (r *rig) naive(t *testing.T, looks, writes sqlfence.Queryer) error {
	t.Helper()
	var seen int64
	if err := looks.QueryRowContext(as(t, older), mark).Scan(&seen); err != nil {
		return err
	}
	require.LessOrEqual(t, seen, int64(older), "the naive check passes")
	require.NoError(t, r.f.Claim(as(t, newer), r.db, resource))
	require.Zero(t, r.row(t).n, "what the newer holder reads after its claim")
	return write(as(t, older), writes, 0, older)
}

// EXISTS on the mark in the UPDATE itself. At read committed PostgreSQL looks at the newest version of the row that it
// had to wait for, and at an old one of the mark.
func TestControl_existsInTheUpdate(t *testing.T) {
	for _, p := range places {
		if p.kind != storetest.PostgreSQL || p.level != sql.LevelReadCommitted {
			continue // elsewhere the statement fails or sees the new mark
		}
		t.Run(p.String(), func(t *testing.T) {
			r := newRig(t, p)
			require.NoError(t, r.f.Claim(as(t, older), r.db, resource))
			naive := make(chan error, 1)
			require.NoError(t, r.transaction(as(t, newer), func(tx *sql.Tx) error {
				if err := r.f.Check(as(t, newer), tx, resource); err != nil {
					return err
				}
				if err := write(as(t, newer), tx, 0, newer); err != nil {
					return err
				}
				go func() {
					_, err := r.db.ExecContext(as(t, older), "UPDATE data SET stale = stale + 1 WHERE id = 1 AND EXISTS ("+
						"SELECT 1 FROM "+sqlfence.DefaultTable+" WHERE resource = 'accounts' AND token <= 10)")
					naive <- err
				}()
				r.awaitWaiter(t)
				return nil
			}))
			require.NoError(t, <-naive)
			require.EqualValues(t, 1, r.row(t).stale, "a stale write after the newer one was committed")
		})
	}
}
