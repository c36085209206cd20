package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// interrupted opens connections where something happens before their second transaction. It hides which driver it wraps,
// so that a fence takes it for any dialect.
type interrupted struct {
	wrapped driver.Driver
	dsn     string
	then    func()
}

func (d *interrupted) Driver() driver.Driver            { return d }
func (d *interrupted) Open(string) (driver.Conn, error) { return d.Connect(context.Background()) }

func (d *interrupted) Connect(context.Context) (driver.Conn, error) {
	conn, err := d.wrapped.Open(d.dsn)
	return &interruptedConn{Conn: conn, then: d.then}, err
}

type interruptedConn struct {
	driver.Conn
	begins int
	then   func()
}

func (c *interruptedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if c.begins++; c.begins == 2 {
		c.then()
	}
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

// overtaken claims at a rig whose other pool does something between the claim's look at the marks and its raising one.
func overtaken(t *testing.T, r *rig, log string, claim func(overSQL) error, then func()) error {
	t.Helper()
	db := sql.OpenDB(&interrupted{wrapped: r.db.Driver(), dsn: r.store.DSN, then: then})
	db.SetMaxOpenConns(1)
	f, err := newSQL(db, r.dialect(), sqlfence.Options{Log: log})
	require.NoError(t, err)
	err = claim(f)
	require.NoError(t, db.Close())
	return err
}

// A newer token of the other mode that reaches the marks between an older claim's look at them and its raising one refuses the
// claim, which raises nothing.
func TestMarks_claimsOvertakenByTheOtherMode(t *testing.T) {
	at(t, each, func(t *testing.T, r *rig) {
		t.Helper()
		for _, first := range []fence.Token{0, 5} { // without a mark, and with one
			r.reset(t)
			if first != 0 {
				require.NoError(t, r.claim(as(t, first), resource))
			}
			err := overtaken(t, r, "", func(f overSQL) error { return f.claim(as(t, older), resource) }, func() {
				require.NoError(t, r.claimRead(asReader(t, newer), resource))
			})
			requireFenced(t, err, do)
			requireMark(t, r, "token", first)

			r.reset(t)
			if first != 0 {
				require.NoError(t, r.claimRead(asReader(t, first), resource))
			}
			err = overtaken(t, r, "", func(f overSQL) error { return f.claimRead(asReader(t, older), resource) }, func() {
				require.NoError(t, r.claim(as(t, newer), resource))
			})
			requireReaderRefused(t, err)
			requireMark(t, r, "read_token", first)
		}
	})
}

func requireMark(t *testing.T, r *rig, column string, want fence.Token) {
	t.Helper()
	var got int64
	require.NoError(t, r.scan(t.Context(), "SELECT "+column+" FROM leasefence_marks WHERE resource = 'accounts'", &got))
	require.Equal(t, int64(want), got, "the claim that was refused has raised its mark")
}

// A newer token that reaches the mark between an older claim's look at it and its raising it is not lowered.
func TestMarks_Claim_overtakenAfterItsLook(t *testing.T) {
	at(t, each, func(t *testing.T, r *rig) {
		t.Helper()
		for _, log := range []string{"", sqlfence.DefaultLog} {
			require.NoError(t, r.with(t, sqlfence.Options{Log: log}).migrate(t.Context()))
			for _, first := range []fence.Token{0, 5} { // without a mark, and with one
				r.reset(t)
				if first != 0 {
					require.NoError(t, r.claim(as(t, first), resource))
				}
				err := overtaken(t, r, log, func(f overSQL) error { return f.claim(as(t, older), resource) },
					func() { require.NoError(t, r.claim(as(t, newer), resource)) })
				require.Equal(t, &fence.StaleError{Resource: resource, Token: older, Highest: newer}, err)
				require.ErrorIs(t, r.claim(as(t, newer-1), resource), fence.ErrStale, "the mark stands")
			}
		}
	})
}
