package sqlfence_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
)

// fakeServer is a driver whose marks always equal the token, those of writers and of readers. The test chooses the results of connecting and of COMMIT.
type fakeServer struct {
	token           int64
	connect         func() error
	commit          func() error
	query           func() error // the error of a statement
	begins, commits int          // read them only when no transaction is under way
	open            int          // transactions
	loose           int          // statements outside of a transaction
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) {
	if s.connect != nil {
		return nil, s.connect()
	}
	return &fakeConn{s: s}, nil
}

func (s *fakeServer) Driver() driver.Driver { return fakeDriver{} }

type fakeDriver struct{}

func (fakeDriver) Open(string) (driver.Conn, error) {
	return nil, errors.New("opened by a connector only")
}

type fakeConn struct {
	s      *fakeServer
	inside bool // a transaction
}

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Rollback() error                     { c.end(); return nil }

func (c *fakeConn) Begin() (driver.Tx, error) {
	c.s.begins++
	c.s.open++
	c.inside = true
	return c, nil
}

func (c *fakeConn) end() {
	c.s.open--
	c.inside = false
}

func (c *fakeConn) Commit() error {
	c.s.commits++
	c.end()
	if c.s.commit == nil {
		return nil
	}
	return c.s.commit()
}

func (c *fakeConn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	c.count()
	if c.s.query != nil {
		return nil, c.s.query()
	}
	values := []driver.Value{c.s.token, c.s.token, "", int64(0), int64(0), "", false}
	switch {
	case strings.Contains(query, "txid_current"):
		values = values[:1]
	case !strings.Contains(query, "transaction_isolation"):
		values = values[:3]
	}
	return &fakeRows{values: values}, nil
}

func (c *fakeConn) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	c.count()
	if c.s.query != nil {
		return nil, c.s.query()
	}
	return driver.RowsAffected(1), nil
}

func (c *fakeConn) count() {
	if !c.inside {
		c.s.loose++
	}
}

// BeginTx takes any level.
func (c *fakeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c.Begin() }

type fakeRows struct{ values []driver.Value }

func (r *fakeRows) Columns() []string {
	return []string{"token", "read_token", "lock_name", "announced", "announced_read", "announced_lock", "snapshot"}[:len(r.values)]
}

func (r *fakeRows) Close() error { return nil }

func (r *fakeRows) Next(dest []driver.Value) error {
	if r.values == nil {
		return io.EOF
	}
	copy(dest, r.values)
	r.values = nil
	return nil
}
