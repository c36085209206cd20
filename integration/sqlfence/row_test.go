package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

func TestUpdateRow(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		set := "n = ?"
		if r.dialect == sqlfence.PostgreSQL {
			set = "n = $1"
		}
		require.NoError(t, r.updateRow(as(t, newer), r.conn, account, set, 5))
		require.NoError(t, r.updateRow(as(t, newer), r.conn, account, set, 5), "MySQL counts no row then")

		err := r.updateRow(as(t, older), r.conn, account, set, 6)
		stale, ok := err.(*fence.StaleError) //nolint:errorlint // Nothing is to be wrapped around it.
		require.True(t, ok, "%v", err)
		require.Equal(t, fence.StaleError{Resource: `data/"1"`, Token: older, Highest: newer}, *stale)
		require.EqualValues(t, 5, r.row(t).n)

		missing := account
		missing.ID = 2
		require.ErrorIs(t, r.updateRow(as(t, newer), r.conn, missing, set, 6), sqlfence.ErrNoRow)
		require.ErrorContains(t, r.updateRow(as(t, newer), r.conn, account, "nothing = 6"), "nothing", "the driver's error")

		ctx := as(t, newer)
		err = r.transaction(ctx, func(tx conn) error {
			_, err := read(ctx, tx)
			require.NoError(t, err)
			require.NoError(t, r.updateRow(as(t, newer+1), r.conn, account, set, 7))
			return r.updateRow(ctx, tx, account, set, 8)
		})
		require.True(t, errors.Is(err, fence.ErrStale) || transient(err), "its snapshot shows its own token: %v", err)
	})
}

// A comment in set hides neither the fence nor the condition, and no argument takes the place of another.
func TestUpdateRow_setAndItsArguments(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		r.must(t, fmt.Sprintf("INSERT INTO data VALUES (%d, 0, 0, 0, 0)", newer)) // its key is the token
		require.NoError(t, r.updateRow(as(t, newer), r.conn, account, "n = 5"))
		for _, open := range []string{"n = 6 -- ", "n = 6 /* "} {
			require.Error(t, r.updateRow(as(t, older), r.conn, account, open))
		}
		require.Error(t, r.updateRow(as(t, newer), r.conn, account, "n = 6", 7), "one argument too many")
		var rows string
		require.NoError(t, r.scan(t.Context(), r.list("n", "fence", "data"), &rows))
		require.Equal(t, "0:0 5:20", rows)
	})
}

// appearing is a connection that calls row after its first statement.
type appearing struct {
	sqlfence.Queryer
	once sync.Once
	row  func()
}

func (q *appearing) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	result, err := q.Queryer.ExecContext(ctx, query, args...)
	q.once.Do(q.row)
	return result, err
}

// The row is inserted between an update that has changed nothing and the lookup: it is updated, or UpdateRow fails.
func TestUpdateRow_insertedMeanwhile(t *testing.T) {
	at(t, each, func(t *testing.T, r *rig) {
		for _, mark := range []fence.Token{older, newer, newer + 1} {
			r.must(t, "DELETE FROM data")
			comes := func() { r.must(t, fmt.Sprintf("INSERT INTO data VALUES (1, 0, 0, 0, %d)", mark)) }
			err := r.updateRow(as(t, newer), sqlConn{&appearing{Queryer: r.db, row: comes}}, account, "n = 5")
			if mark > newer {
				require.ErrorIs(t, err, fence.ErrStale)
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, 5, r.row(t).n, "a row with token %d", mark)
		}
	})
}
