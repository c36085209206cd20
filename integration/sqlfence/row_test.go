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
	"github.com/leasefence/leasefence/integration/storetest"
)

func TestUpdateRow(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		set := "n = ?"
		if r.kind == storetest.PostgreSQL {
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

// step is a place in a transaction where another holder may come.
type step string

const (
	beforeBegin step = "before the transaction"
	begun       step = "after begin"
	guarded     step = "after the guard"
	hasRead     step = "after the read"
	hasWritten  step = "after the write"
	committed   step = "after the commit"
)

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
func (f form) checks() bool { return f != do && f != doShared }

func (f form) shared() bool { return f == doShared || f == checkShared }

// increment is one read-modify-write in a form, or under CheckRead two reads of the same.
func (r *rig) increment(ctx context.Context, how form, at func(step)) error {
	_, err := r.incrementOn(ctx, resource, how, at)
	return err
}

// incrementOn also returns what it has read.
func (r *rig) incrementOn(ctx context.Context, resource string, how form, at func(step)) (n int64, err error) {
	token, _ := fence.FromContext(ctx)
	err = r.runOn(ctx, resource, how, at, func(ctx context.Context, tx conn) (err error) {
		if n, err = read(ctx, tx); err != nil {
			return err
		}
		at(hasRead)
		if how == checkRead {
			again, err := read(ctx, tx)
			if err == nil && again != n {
				err = errChanged
			}
			return err
		}
		if err := write(ctx, tx, n, token); err != nil {
			return err
		}
		at(hasWritten)
		return nil
	})
	return n, err
}

// runOn runs body in a transaction that the form guards. It calls at at each step that the form has, again if it is
// repeated.
func (r *rig) runOn(ctx context.Context, resource string, how form, at func(step),
	body func(context.Context, conn) error,
) (err error) {
	inside := func(ctx context.Context, tx conn) error {
		at(guarded)
		return body(ctx, tx)
	}
	at(beforeBegin)
	switch how {
	case do:
		err = r.do(ctx, resource, inside)
	case doShared:
		err = r.doShared(ctx, resource, inside)
	default:
		err = r.transaction(ctx, func(tx conn) error {
			at(begun)
			if err := r.guard[how](ctx, tx, resource); err != nil {
				return err
			}
			return inside(ctx, tx)
		})
	}
	at(committed)
	return err
}

// checked runs body in a transaction under CheckRead.
func (r *rig) checked(ctx context.Context, at func(step), body func(tx conn) error) error {
	return r.runOn(ctx, resource, checkRead, at, func(_ context.Context, tx conn) error { return body(tx) })
}

func nowhere(step) {}

func nothing(context.Context, conn) error { return nil }
