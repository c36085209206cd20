package pgxfence_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
)

// unsentError is an error of pgx that came before anything was sent.
type unsentError struct{ error }

func (unsentError) SafeToRetry() bool { return true }

// These answers to COMMIT come only from pgx. The others are in sqlfence's test, and those of a server in the
// integration module.
func TestDo_answerToCommit(t *testing.T) {
	for _, c := range []struct {
		err  error
		runs int
	}{
		{&pgconn.PgError{Code: "40001"}, 3},
		{unsentError{io.ErrClosedPipe}, 1},
		{unsentError{context.Canceled}, 1},
	} {
		t.Run(fmt.Sprint(c.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &fakeDB{token: 7, commit: func() error { return c.err }}
				runs := 0
				f := newFence(t, pgxfence.Options{Attempts: 3})
				err := f.Do(fence.NewContext(t.Context(), 7), db, "accounts", func(context.Context, pgx.Tx) error { runs++; return nil })
				require.Equal(t, c.runs, runs)
				require.NotErrorIs(t, err, pgxfence.ErrUnknown)
				require.ErrorIs(t, err, c.err)
			})
		})
	}
}

func TestDo_beginsAtItsLevel(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		db := &fakeDB{token: 7}
		f := newFence(t, pgxfence.Options{Isolation: level})
		require.NoError(t, f.Do(fence.NewContext(t.Context(), 7), db, "accounts", nothing))
		require.Equal(t, pgx.TxOptions{IsoLevel: level}, db.opts)
	}
}
