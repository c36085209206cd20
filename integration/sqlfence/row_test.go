package sqlfence_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

func TestUpdateRow(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		account := sqlfence.Row{Table: "data", Key: "id", ID: 1}
		set := "n = ?"
		if r.kind == storetest.PostgreSQL {
			set = "n = $1"
		}
		require.NoError(t, r.f.UpdateRow(as(t, newer), r.db, account, set, 5))
		require.NoError(t, r.f.UpdateRow(as(t, newer), r.db, account, set, 5), "MySQL counts no row then")

		err := r.f.UpdateRow(as(t, older), r.db, account, set, 6)
		stale, ok := err.(*fence.StaleError) //nolint:errorlint // Nothing is to be wrapped around it.
		require.True(t, ok, "%v", err)
		require.Equal(t, fence.StaleError{Resource: `data/"1"`, Token: older, Highest: newer}, *stale)
		require.EqualValues(t, 5, r.row(t).n)

		account.ID = 2
		require.ErrorIs(t, r.f.UpdateRow(as(t, newer), r.db, account, set, 6), sqlfence.ErrNoRow)
	})
}

// The newer holder has written and not committed when the older one comes: that waits, and is refused.
func TestUpdateRow_newerHolderIsInFlight(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		account := sqlfence.Row{Table: "data", Key: "id", ID: 1}
		answer := make(chan error, 1)
		tx, err := r.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, r.f.UpdateRow(as(t, newer), tx, account, "n = n + 1"))
		go func() { answer <- r.f.UpdateRow(as(t, older), r.db, account, "n = n + 100") }()
		r.awaitWaiter(t)
		require.NoError(t, tx.Commit())
		require.ErrorIs(t, <-answer, fence.ErrStale)
		require.EqualValues(t, 1, r.row(t).n)
	})
}
