package sqlfence_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

func TestUpdateRow(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		set := "n = " + r.arg(1)
		require.NoError(t, r.updateRow(as(t, newer), nil, account, set, 5))
		require.NoError(t, r.updateRow(as(t, newer), nil, account, set, 5), "MySQL counts no row then")

		err := r.updateRow(as(t, older), nil, account, set, 6)
		stale, ok := err.(*fence.StaleError) //nolint:errorlint // Nothing is to be wrapped around it.
		require.True(t, ok, "%v", err)
		require.Equal(t, fence.StaleError{Resource: `data/"1"`, Token: older, Highest: newer}, *stale)
		require.EqualValues(t, 5, r.row(t).n)

		missing := account
		missing.ID = 2
		require.ErrorIs(t, r.updateRow(as(t, newer), nil, missing, set, 6), sqlfence.ErrNoRow)
	})
}

// A comment in set hides neither the fence nor the condition, and no argument takes the place of another.
func TestUpdateRow_setAndItsArguments(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		r.must(t, fmt.Sprintf("INSERT INTO data VALUES (%d, 0, 0, 0, 0)", newer)) // its key is the token
		require.NoError(t, r.updateRow(as(t, newer), nil, account, "n = 5"))
		for _, open := range []string{"n = 6 -- ", "n = 6 /* "} {
			require.Error(t, r.updateRow(as(t, older), nil, account, open))
		}
		require.Error(t, r.updateRow(as(t, newer), nil, account, "n = 6", 7), "one argument too many")
		rows, err := r.pairs(t.Context(), "SELECT n, fence FROM data ORDER BY id")
		require.NoError(t, err)
		require.Equal(t, [][2]int64{{5, int64(newer)}, {0, 0}}, rows)
	})
}

// The newer holder has written and not committed when the older one comes, which waits and is refused.
func TestUpdateRow_newerHolderIsInFlight(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		answer := make(chan error, 1)
		require.NoError(t, r.transaction(as(t, newer), func(tx conn) error {
			if err := r.updateRow(as(t, newer), tx, account, "n = n + 1"); err != nil {
				return err
			}
			go func() { answer <- r.updateRow(as(t, older), nil, account, "n = n + 100") }()
			r.awaitWaiter(t)
			return nil
		}))
		require.ErrorIs(t, <-answer, fence.ErrStale)
		require.EqualValues(t, 1, r.row(t).n)
	})
}

// appearing is a connection that calls row after its first statement.
type appearing struct {
	sqlQueryer
	once sync.Once
	row  func()
}

func (q *appearing) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	result, err := q.sqlQueryer.ExecContext(ctx, query, args...)
	q.once.Do(q.row)
	return result, err
}

// The row is inserted between an update that has changed nothing and the lookup: it is updated, or UpdateRow fails.
func TestUpdateRow_insertedMeanwhile(t *testing.T) {
	at(t, each, func(t *testing.T, r *rig) {
		for _, mark := range []fence.Token{older, newer, newer + 1} {
			r.must(t, "DELETE FROM data")
			comes := func() { r.must(t, fmt.Sprintf("INSERT INTO data VALUES (1, 0, 0, 0, %d)", mark)) }
			err := r.updateRow(as(t, newer), sqlConn{&appearing{sqlQueryer: r.db, row: comes}}, account, "n = 5")
			if mark > newer {
				require.ErrorIs(t, err, fence.ErrStale)
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, 5, r.row(t).n, "a row with token %d", mark)
		}
	})
}
