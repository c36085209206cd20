package sqlfence_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
)

// fakeServer is a PostgreSQL whose marks always equal the token, those of writers and of readers. It is also its driver,
// connections and transactions. The test chooses the results of connecting and of COMMIT.
type fakeServer struct {
	token           int64
	connect         func() error
	commit          func() error
	query           func() error // the error of a statement
	begins, commits int          // read them only when no transaction is under way
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) { return s, call(s.connect) }
func (s *fakeServer) Driver() driver.Driver                        { return s }
func (s *fakeServer) Open(string) (driver.Conn, error)             { return s, nil }
func (s *fakeServer) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (s *fakeServer) Close() error                                 { return nil }
func (s *fakeServer) Rollback() error                              { return nil }

func (s *fakeServer) Begin() (driver.Tx, error) {
	s.begins++
	return s, nil
}

// BeginTx takes any level.
func (s *fakeServer) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return s.Begin() }

func (s *fakeServer) Commit() error {
	s.commits++
	return call(s.commit)
}

func (s *fakeServer) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	values := fakeRow{s.token, s.token, "", int64(0), int64(0), "", false}
	if strings.Contains(query, "txid_current") {
		values = values[:1]
	}
	return &values, call(s.query)
}

func (s *fakeServer) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), call(s.query)
}

func call(result func() error) error {
	if result == nil {
		return nil
	}
	return result()
}

type fakeRow []driver.Value

func (r *fakeRow) Columns() []string { return make([]string, len(*r)) }
func (r *fakeRow) Close() error      { return nil }

func (r *fakeRow) Next(dest []driver.Value) error {
	if *r == nil {
		return io.EOF
	}
	copy(dest, *r)
	*r = nil
	return nil
}
