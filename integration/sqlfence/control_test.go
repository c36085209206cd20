package sqlfence_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// On the same servers and with the same rig, naive checks let a stale write be committed. So the fault that the other
// tests look for does happen without the guard.

const mark = "SELECT token FROM " + sqlfence.DefaultTable + " WHERE resource = 'accounts'"

// Reads the mark, then writes, in one transaction. The write does not notice a claim in between. On SQLite, and on
// MariaDB where a plain read locks, it does: there the read and the write are not in one transaction.
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

// Compares the mark by EXISTS in the UPDATE itself. At read committed PostgreSQL then reads the newest version of the
// row that it had to wait for, and an old version of the mark. Elsewhere the statement fails or sees the new mark.
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
