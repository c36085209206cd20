package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// interrupted opens connections that call then before their second transaction. It hides the driver that it wraps, so
// that a fence accepts it for any dialect.
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

// overtaken claims on a pool of its own, and calls then between the claim's look at the marks and its raise.
func overtaken(t *testing.T, r *rig, log string, claim func(*adapter) error, then func()) error {
	t.Helper()
	db := sql.OpenDB(&interrupted{wrapped: r.db.Driver(), dsn: r.store.DSN, then: then})
	db.SetMaxOpenConns(1)
	f, err := newSQL(db, r.dialect(), sqlfence.Options{Log: log})
	require.NoError(t, err)
	err = claim(f)
	require.NoError(t, db.Close())
	return err
}

// Between a claim's look at the marks and its raise, another claim comes and refuses it: a writer's or a reader's with
// a newer token, or one of another lock where the resource followed none. The refused claim raises nothing.
func TestMarks_claimsOvertaken(t *testing.T) {
	type call struct {
		verb, lock string
		token      fence.Token
	}
	at(t, each, func(t *testing.T, r *rig) {
		carrying := func(v fencetest.Verb, c call) context.Context {
			if c.lock == "" {
				return v.Context(t.Context(), c.token)
			}
			return v.Context(t.Context(), c.token, c.lock)
		}
		for _, row := range []struct{ claim, comes call }{
			{call{"Claim", "", older}, call{"Claim", "", newer}},
			{call{"Claim", "", older}, call{"ClaimRead", "", newer}},
			{call{"ClaimRead", "", older}, call{"Claim", "", newer}},
			{call{"Claim", "report", newer}, call{"Claim", "accounts", older}},
			{call{"ClaimRead", "report", newer}, call{"Claim", "accounts", older}},
		} {
			for _, log := range []string{"", sqlfence.DefaultLog} {
				require.NoError(t, r.with(t, sqlfence.Options{Log: log}).migrate(t.Context()))
				for _, first := range []fence.Token{0, 5} { // without a mark, and with one
					r.reset(t)
					v, comer := verbs(r)[row.claim.verb], verbs(r)[row.comes.verb]
					if first != 0 {
						require.NoError(t, v.Call(carrying(v, call{token: first}), resource))
					}
					before := r.marks(t, resource)
					after, refused := before.After(comer, row.comes.token, row.comes.lock, false)
					require.NoError(t, refused)
					_, want := after.After(v, row.claim.token, row.claim.lock, false)
					err := overtaken(t, r, log, func(f *adapter) error {
						if v.Reads {
							return f.claimRead(carrying(v, row.claim), resource)
						}
						return f.claim(carrying(v, row.claim), resource)
					}, func() {
						require.NoError(t, comer.Call(carrying(comer, row.comes), resource), "the other claim is announced")
					})
					fencetest.RequireRefusal(t, want, err, resource, fmt.Sprint(row, first))
					require.Equal(t, after, r.marks(t, resource).Normal(), "the claim that was refused has raised its mark")
					if row.comes.lock == "" {
						continue
					}
					// The announcement of the refused claim refuses nobody.
					for _, how := range forms {
						require.NoError(t, r.increment(of(t, "accounts", older), how, nowhere))
					}
					require.NoError(t, r.checked(readerOf(t, "accounts", older), nowhere, func(conn) error { return nil }))
					require.NoError(t, r.claim(of(t, "accounts", older+1), resource))
					require.NoError(t, r.claimRead(readerOf(t, "accounts", older+2), resource))
				}
			}
		}
	})
}
