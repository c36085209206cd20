package sqlfence_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/sqlmark"
)

// tx is a transaction of database/sql for the engine.
type tx struct{ *sql.Tx }

func (t tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := t.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t tx) QueryRow(ctx context.Context, query string, args ...any) sqlmark.Scanner {
	return t.QueryRowContext(ctx, query, args...)
}

func (t tx) Commit(context.Context) error   { return t.Tx.Commit() }
func (t tx) Rollback(context.Context) error { return t.Tx.Rollback() }

// interrupted is a database where something happens after the first row that the engine reads.
type interrupted struct {
	db   *sql.DB
	then func()
}

func (d *interrupted) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := d.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (d *interrupted) QueryRow(ctx context.Context, query string, args ...any) sqlmark.Scanner {
	return scanned{d.db.QueryRowContext(ctx, query, args...), d}
}

func (d *interrupted) Begin(ctx context.Context) (tx, error) {
	t, err := d.db.BeginTx(ctx, nil)
	return tx{t}, err
}

type scanned struct {
	row *sql.Row
	d   *interrupted
}

func (s scanned) Scan(dest ...any) error {
	err := s.row.Scan(dest...)
	if then := s.d.then; then != nil {
		s.d.then = nil
		then()
	}
	return err
}

// A newer token that reaches the mark between an older claim's look at it and its raising it is not lowered.
func TestFence_Claim_overtakenAfterItsLook(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, first := range []fence.Token{0, 5} { // without a mark, and with one
			for _, log := range []string{"", sqlmark.DefaultLog} {
				r.reset(t)
				engine, err := sqlmark.New[tx](sqlmark.Config{Package: "sqlfence", Dialect: sqlmark.Dialect(r.dialect), Log: log})
				require.NoError(t, err)
				db := &interrupted{db: r.db}
				require.NoError(t, engine.Migrate(t.Context(), db))
				if first != 0 {
					require.NoError(t, r.f.Claim(as(t, first), r.db, resource))
				}
				db.then = func() { require.NoError(t, r.f.Claim(as(t, newer), r.db, resource)) }
				err = engine.Claim(as(t, older), db, resource, older)
				require.Equal(t, &fence.StaleError{Resource: resource, Token: older, Highest: newer}, err)
				require.ErrorIs(t, r.f.Claim(as(t, newer-1), r.db, resource), fence.ErrStale, "the mark stands")
			}
		}
	})
}
