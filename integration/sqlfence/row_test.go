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

// form is a way to write.
type form string

const (
	do          form = "Do"
	doShared    form = "DoShared"
	check       form = "Check"
	checkShared form = "CheckShared"

	// These are not among forms: one is for readers, the other needs a claim of the path.
	checkRead form = "CheckRead"
	checkPath form = "CheckPath"
)

var forms = []form{do, doShared, check, checkShared}

// checks reports whether the transaction is the caller's own.
func (f form) checks() bool { return f != do && f != doShared && f != "" }

func (f form) shared() bool { return f == doShared || f == checkShared }

// increment is one read-modify-write in a form, or under CheckRead two reads of the same.
func (r *rig) increment(ctx context.Context, how form) error {
	_, err := r.incrementOn(ctx, resource, how)
	return err
}

// incrementOn also returns what it has read, for the first time if it is repeated.
func (r *rig) incrementOn(ctx context.Context, resource string, how form) (first int64, err error) {
	token, _ := fence.FromContext(ctx)
	runs := 0
	err = r.run(ctx, resource, how, func(ctx context.Context, tx conn) (err error) {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		if runs++; runs == 1 {
			first = n
		}
		if how != checkRead {
			return write(ctx, tx, n, token)
		}
		again, err := read(ctx, tx)
		if err == nil && again != n {
			err = errChanged
		}
		return err
	})
	return first, err
}

// run runs body in a transaction that the form guards.
func (r *rig) run(ctx context.Context, resource string, how form, body func(context.Context, conn) error) error {
	switch how {
	case do:
		return r.do(ctx, resource, body)
	case doShared:
		return r.doShared(ctx, resource, body)
	}
	return r.transaction(ctx, func(tx conn) error {
		if err := r.guard[how](ctx, tx, resource); err != nil {
			return err
		}
		return body(ctx, tx)
	})
}

func nothing(context.Context, conn) error { return nil }
