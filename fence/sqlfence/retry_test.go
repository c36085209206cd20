package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

type stateError string // as pgx's and lib/pq's

func (e stateError) Error() string    { return "ERROR: something (SQLSTATE " + string(e) + ")" }
func (e stateError) SQLState() string { return string(e) }

// Do repeats a transaction that COMMIT has rolled back for a temporary reason, returns the error if the reason is
// permanent, and returns ErrUnknown for any other error of COMMIT.
func TestDo_answerToCommit(t *testing.T) {
	for _, c := range []struct {
		err     error
		runs    int
		unknown bool
	}{
		{nil, 1, false},
		{stateError("40001"), 3, false},
		{fmt.Errorf("wrapped: %w", stateError("40P01")), 3, false},
		{stateError("23505"), 1, false},
		{stateError("P0001"), 1, false},
		{errors.New("commit unexpectedly resulted in rollback"), 1, false},
		{stateError("40003"), 1, true},
		{stateError("57P01"), 1, true},
		{stateError("08006"), 1, true},
		{stateError(""), 1, true},
		{io.ErrUnexpectedEOF, 1, true},
		{driver.ErrBadConn, 1, true},
		{context.DeadlineExceeded, 1, true},
		{errors.New("Error 1213 (40001): Deadlock found"), 1, true}, // MySQL's error, unknown on PostgreSQL
	} {
		t.Run(fmt.Sprint(c.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &fakeServer{token: 7, commit: func() error { return c.err }}
				runs, err := doOn(t, server, nil, 3)
				require.Equal(t, c.runs, runs)
				require.Equal(t, c.runs, server.begins)
				require.Equal(t, c.unknown, errors.Is(err, sqlfence.ErrUnknown), "%v", err)
				require.ErrorIs(t, err, c.err)
				if c.unknown {
					require.EqualError(t, err, fmt.Sprintf(`sqlfence: outcome unknown: do "accounts": commit: %v`, c.err))
				}
			})
		})
	}
}

// Do returns the error of fn, and repeats fn only after an error of the server that is temporary.
func TestDo_errorOfFn(t *testing.T) {
	for _, c := range []struct {
		err  error
		runs int
	}{
		{stateError("40001"), 3},
		{errors.Join(errors.New("also"), stateError("40P01")), 3},
		{stateError("55P03"), 1}, // lock_not_available
		{stateError("57014"), 1}, // query_canceled
		{io.EOF, 1},
		{sqlfence.ErrUnknown, 1},
		{errors.Join(sqlfence.ErrUnknown, stateError("40001")), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &fakeServer{token: 7}
			runs, err := doOn(t, server, func() error { return c.err }, 3)
			require.Equal(t, c.runs, runs, "%v", c.err)
			require.ErrorIs(t, err, c.err)
			require.Zero(t, server.commits)
		})
	}
}

func TestDo_contextEndsInThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the lock has gone")
		ctx, cancel := context.WithCancelCause(fence.NewContext(t.Context(), 7))
		db := sql.OpenDB(&fakeServer{token: 7})
		defer db.Close() //nolint:errcheck // A fake.
		runs := 0
		err := newFence(t, sqlfence.Options{}).Do(ctx, db, "accounts", func(context.Context, *sql.Tx) error {
			runs++
			cancel(gone)
			return stateError("40001")
		})
		require.ErrorIs(t, err, gone)
		require.ErrorIs(t, err, stateError("40001"))
		require.Equal(t, 1, runs)
	})
}

// A guard that has met a newer COMMIT is repeated without a count, but not for the guard of another Do.
func TestDo_ofAnotherResourceGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(fence.NewContext(t.Context(), 7))
	server := &fakeServer{token: 7, query: func() error {
		cancel()
		return stateError("40001")
	}}
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	runs, f := 0, newFence(t, sqlfence.Options{Attempts: 1})
	_, err := doOn(t, &fakeServer{token: 7}, func() error {
		if runs++; runs == 5 {
			return nil
		}
		return f.Do(ctx, db, "inner", func(context.Context, *sql.Tx) error { panic("not guarded") })
	}, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, runs)
}

// The claim of a Do shares its attempts.
func TestDo_claimFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{token: 7, commit: func() error { return stateError("40001") }}
		db := sql.OpenDB(server)
		defer db.Close() //nolint:errcheck // A fake.
		f := newFence(t, sqlfence.Options{Attempts: 3})
		err := f.Do(fence.NewContext(t.Context(), 8), db, "accounts", func(context.Context, *sql.Tx) error { panic("not claimed") })
		require.ErrorIs(t, err, stateError("40001"))
		require.Equal(t, 3, server.commits)
	})
}

// The claim of a path that has been claimed reads each node once and writes nothing.
func TestMarks_ClaimPath_again(t *testing.T) {
	server := &fakeServer{token: 7}
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	require.NoError(t, newFence(t, sqlfence.Options{}).ClaimPath(fence.NewContext(t.Context(), 7), db, "a/b/c"))
	require.Equal(t, 3, server.begins)
}

// doOn runs Do and returns how often the function ran.
func doOn(t *testing.T, server *fakeServer, fn func() error, attempts int) (runs int, err error) {
	t.Helper()
	db := sql.OpenDB(server)
	defer db.Close() //nolint:errcheck // A fake.
	ctx := fence.NewContext(t.Context(), fence.Token(server.token))
	err = newFence(t, sqlfence.Options{Attempts: attempts}).Do(ctx, db, "accounts", func(context.Context, *sql.Tx) error {
		runs++
		if fn == nil {
			return nil
		}
		return fn()
	})
	return runs, err
}
