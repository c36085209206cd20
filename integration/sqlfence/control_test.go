package sqlfence_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// The naive forms, on the same servers and by the same rig, let a stale write be committed: what the other tests look
// for does happen where the guard is missing.

const mark = "SELECT token FROM " + sqlfence.DefaultTable + " WHERE resource = 'accounts'"

// Look at the mark, then write, in one transaction. A claim in between is not noticed. SQLite's write lock notices it,
// and so does MariaDB when a plain read locks: there the two are apart.
func TestControl_selectThenUpdate(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
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
		if r.readersLock() || r.kind == storetest.SQLite {
			require.NoError(t, naive(r))
		} else {
			require.NoError(t, r.transaction(as(t, older), naive))
		}
		require.EqualValues(t, 1, r.row(t).n, "a stale write after the claim had returned")
	})
}

// EXISTS on the mark in the UPDATE itself. At read committed PostgreSQL looks at the newest version of the row that it
// had to wait for, and at an old one of the mark. Elsewhere the statement fails or sees the new mark.
func TestControl_existsInTheUpdate(t *testing.T) {
	r := newRig(t, readCommitted)
	require.NoError(t, r.claim(as(t, older), resource))
	naive := make(chan error, 1)
	require.NoError(t, r.increment(as(t, newer), check, func(at step) {
		if at != hasWritten {
			return
		}
		go func() {
			naive <- r.exec(as(t, older), "UPDATE data SET stale = stale + 1 WHERE id = 1 AND EXISTS ("+
				"SELECT 1 FROM "+sqlfence.DefaultTable+" WHERE resource = 'accounts' AND token <= 10)")
		}()
		r.awaitWaiter(t)
	}))
	require.NoError(t, <-naive)
	require.EqualValues(t, 1, r.row(t).stale, "a stale write after the newer one was committed")
}
