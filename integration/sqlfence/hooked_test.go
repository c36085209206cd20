package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// hook is called before each request to the server: a statement, or "begin", "commit" or "rollback". The request fails if
// it returns an error.
type hook func(request string) error

// hooked opens connections with a hook. It hides the driver that it wraps, so that a fence accepts it for any dialect.
type hooked struct {
	wrapped driver.Driver
	dsn     string
	hook    hook
}

func (d *hooked) Driver() driver.Driver            { return d }
func (d *hooked) Open(string) (driver.Conn, error) { return d.Connect(context.Background()) }

func (d *hooked) Connect(context.Context) (driver.Conn, error) {
	conn, err := d.wrapped.Open(d.dsn)
	return hookedConn{conn, d.hook}, err
}

type hookedConn struct {
	driver.Conn
	hook hook
}

func (c hookedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.hook("begin"); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return hookedTx{tx, c.hook}, err
}

func (c hookedConn) Prepare(query string) (driver.Stmt, error) {
	if err := c.hook(query); err != nil {
		return nil, err
	}
	return c.Conn.Prepare(query)
}

type hookedTx struct {
	driver.Tx
	hook hook
}

func (tx hookedTx) Commit() error {
	if err := tx.hook("commit"); err != nil {
		return errors.Join(err, tx.Tx.Rollback())
	}
	return tx.Tx.Commit()
}

func (tx hookedTx) Rollback() error { return errors.Join(tx.hook("rollback"), tx.Tx.Rollback()) }

// TraceQueryStart makes a request of pgx fail by an ended context.
func (h hook) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if h(q.SQL) == nil {
		return ctx
	}
	ended, end := context.WithCancel(ctx)
	end()
	return ended
}

func (hook) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// hooked returns a rig whose fence has one connection, with a hook.
func (r *rig) hooked(t *testing.T, opts sqlfence.Options, h hook) *rig {
	t.Helper()
	x := &rig{place: r.place, store: r.store, db: sql.OpenDB(&hooked{wrapped: r.db.Driver(), dsn: r.store.dsn, hook: h})}
	x.db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, x.db.Close()) })
	if r.pgx {
		x.pool = r.open(t, func(c *pgx.ConnConfig) { c.Tracer = h })
	}
	x.adapter = x.with(t, opts)
	return x
}

// Each request of each verb fails once. The verb returns the error, so that nobody takes it for done. It has sent nothing
// outside of a transaction: with autocommit=0 that is not committed, and a proxy may send it to a replica that lags. A
// transaction that stays open keeps its locks.
func TestMarks_returnsEveryError(t *testing.T) {
	at(t, []place{repeatableRead, pgxPlace, mariaDB, sqlite}, func(t *testing.T, r *rig) {
		audited(t, r)
		requests, failing, inside := 0, 0, false
		failure := func(request string) error {
			was, begins := inside, strings.HasPrefix(request, "begin")
			inside = begins || was && request != "commit" && request != "rollback"
			if request == "rollback" {
				return nil
			}
			require.NotEqual(t, begins, was, request)
			if requests++; requests != failing {
				return nil
			}
			inside = inside && !begins
			return context.Canceled
		}
		x := r.hooked(t, sqlfence.Options{Log: sqlfence.DefaultLog}, failure)
		fresh := x.with(t, sqlfence.Options{Table: "fresh"})
		all := verbs(x)
		for name, call := range map[string]func(ctx context.Context, resource string) error{
			"ClaimPath": x.claimPath,
			"CheckPath": func(ctx context.Context, path string) error { return x.run(ctx, path, checkPath, nothing) },
			"Release":   func(ctx context.Context, path string) error { return x.release(ctx, path, audit.CauseExpired) },
			"LogRefusal": func(ctx context.Context, path string) error {
				return x.logRefusal(ctx, &fence.StaleError{Resource: path, Token: older, Highest: newer})
			},
			"History": func(ctx context.Context, _ string) error { _, _, err := x.history(ctx, sqlfence.Query{}); return err },
			"UpdateRow": func(ctx context.Context, _ string) error {
				inside = r.dialect != sqlfence.MySQL // the others always commit a lone statement
				err := x.updateRow(ctx, x.conn, account, "n = 0")
				inside = inside && r.dialect == sqlfence.MySQL
				return err
			},
			"Migrate": func(ctx context.Context, _ string) error { return x.migrate(ctx) },
			"Migrate of a new table": func(ctx context.Context, _ string) error {
				r.must(t, "DROP TABLE IF EXISTS fresh")
				return fresh.migrate(ctx)
			},
		} {
			all[name] = fencetest.Verb{Call: call}
		}
		for name, v := range all {
			for _, mark := range []fence.Token{0, older, newer, newer + 1} {
				r.reset(t)
				if mark != 0 {
					require.NoError(t, r.claim(as(t, mark), resource))
					require.NoError(t, r.claimPath(as(t, mark), resource+"/b"))
					require.NoError(t, r.updateRow(as(t, mark), r.conn, account, "n = 1"))
				}
				for failing = 1; ; failing++ {
					requests = 0
					err := v.Call(v.Context(as(t, newer), newer), resource+"/b")
					require.False(t, inside, "%s, request %d at a mark of %d", name, failing, mark)
					if requests < failing {
						break
					}
					require.ErrorIs(t, err, context.Canceled, "%s, request %d at a mark of %d", name, failing, mark)
				}
			}
		}
	})
}

// Do has claimed its token, and then the mark is deleted, or something else prevents the claim from taking effect.
func TestDo_markDeletedMeanwhile(t *testing.T) {
	at(t, each, func(t *testing.T, r *rig) {
		begins := 0
		x := r.hooked(t, sqlfence.Options{}, func(request string) error {
			if request == "begin" {
				if begins++; begins == 4 { // Do's own after its first and the claim's two
					r.must(t, "DELETE FROM leasefence_marks")
				}
			}
			return nil
		})
		err := x.do(as(t, older), resource, func(context.Context, conn) error { panic("not claimed") })
		require.ErrorContains(t, err, "the mark was deleted, lowered or moved during the call")
	})
}

// Each verb calls a hook once, whatever the number of its attempts. TestMarks_rules tests the other verbs.
func TestMarks_hooks(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		told := make(fencetest.Told, 9)
		r.adapter = r.with(t, sqlfence.Options{Hooks: told.Hooks()})
		do := func(ctx context.Context, err error) error {
			return r.do(ctx, resource, func(context.Context, conn) error { return err })
		}
		claim := func(token fence.Token, path string) error { return r.claimPath(as(t, token), path) }
		checkPath := func() error {
			return r.transaction(t.Context(), func(tx conn) error { return r.guard[checkPath](as(t, older), tx, "a/b") })
		}
		update := func(token fence.Token) error { return r.updateRow(as(t, token), r.conn, account, "n = n + 1") }
		elsewhere := &fence.StaleError{Resource: "elsewhere", Token: older}
		failed := errors.New("failed")
		ended, end := context.WithCancel(as(t, newer))
		end()
		of := func(resource string, token fence.Token) fence.Access {
			return fence.Access{Resource: resource, Token: token}
		}
		none, did, in := fence.Access{}, of(resource, older), of("a/b", older)
		for _, step := range []struct {
			name string
			want fence.Access // none if the hooks are not called
			is   error        // the verb's result
			verb func() error
		}{
			{"a Do, which claims first", did, nil, func() error { return do(as(t, older), nil) }},
			{"a function that fails", did, failed, func() error { return do(as(t, older), failed) }},
			{"a refusal elsewhere", did, elsewhere, func() error { return do(as(t, older), elsewhere) }},
			{"no token", none, fence.ErrInvalidToken, func() error { return do(t.Context(), nil) }},
			{"an ended context", none, context.Canceled, func() error { return do(ended, nil) }},
			{"a path", in, nil, func() error { return claim(older, "a/b") }},
			{"a path's check", in, nil, checkPath},
			{"a path above", of("a", newer), nil, func() error { return claim(newer, "a") }},
			{"a stale path", in, fence.ErrStale, func() error { return claim(older, "a/b") }},
			{"a stale path's check", in, fence.ErrStale, checkPath},
			{"a row", of(account.String(), newer), nil, func() error { return update(newer) }},
			{"a stale row", of(account.String(), older), fence.ErrStale, func() error { return update(older) }},
		} {
			err := step.verb()
			require.ErrorIs(t, err, step.is, step.name)
			got, failure := told.Last()
			if step.want == none {
				require.Error(t, failure, step.name)
				continue
			}
			require.NoError(t, failure, step.name)
			want := fencetest.Event{Access: step.want}
			if step.is == fence.ErrStale { //nolint:errorlint // of the marks, not elsewhere
				want.Err = err
			}
			require.Equal(t, want, got, step.name)
		}
	})
}
