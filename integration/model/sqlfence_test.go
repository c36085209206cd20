package model_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// fenced is a database and its model. Each run has names and a row of its own.
type fenced struct {
	db   *sql.DB
	f    *sqlfence.Fence
	run  int
	m    model
	n    int64 // the row's value
	rowM model // its fence
}

const setN = "n = n + 1"

// One call after the other, of every kind: the marks are the model's, and the row has counted what was committed.
func TestSQLFence_model(t *testing.T) {
	db := storetest.New(t, storetest.SQLite).DB(t)
	f, err := sqlfence.New(sqlfence.SQLite, sqlfence.Options{})
	require.NoError(t, err)
	require.NoError(t, f.Migrate(t.Context(), db))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE data (id INT PRIMARY KEY, n BIGINT NOT NULL, fence BIGINT NOT NULL)")
	require.NoError(t, err)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		s := &fenced{db: db, f: f, run: run, m: make(model), rowM: make(model)}
		s.exec(t, db, "INSERT INTO data VALUES ("+strconv.Itoa(run)+", 0, 0)")
		t.Repeat(map[string]func(*rapid.T){
			"":                   s.check,
			"Claim":              s.claim,
			"Do":                 func(t *rapid.T) { s.do(t, nil) },
			"Do fails":           func(t *rapid.T) { s.do(t, errDisk) },
			"Check":              func(t *rapid.T) { s.inTx(t, true) },
			"Check, rolled back": func(t *rapid.T) { s.inTx(t, false) },
			"UpdateRow":          s.updateRow,
		})
		s.checkMarks(t)
	})
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (s *fenced) exec(t *rapid.T, on execer, query string) {
	t.Helper()
	_, err := on.ExecContext(t.Context(), query)
	require.NoError(t, err)
}

// draw is a context with a token, which is legal or not there, and the name for the run.
func (s *fenced) draw(t *rapid.T) (ctx context.Context, resource string, token fence.Token) {
	resource, token = draw(t)
	return fence.NewContext(t.Context(), token), fmt.Sprintf("%d/%s", s.run, resource), token
}

// check looks at the row.
func (s *fenced) check(t *rapid.T) {
	var n int64
	require.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT n FROM data WHERE id = ?", s.run).Scan(&n))
	require.Equal(t, s.n, n)
}

// checkMarks looks at each mark from both sides.
func (s *fenced) checkMarks(t *rapid.T) {
	for resource, mark := range s.m {
		require.NoError(t, s.f.Claim(fence.NewContext(t.Context(), mark), s.db, resource))
		if older := mark - 1; older.Valid() {
			requireVerdict(t, s.m.judge(resource, older), s.f.Claim(fence.NewContext(t.Context(), older), s.db, resource))
		}
	}
}

func (s *fenced) claim(t *rapid.T) {
	ctx, resource, token := s.draw(t)
	requireVerdict(t, s.m.take(resource, token), s.f.Claim(ctx, s.db, resource))
}

// do counts in the row, unless fn fails; the mark is raised in any case.
func (s *fenced) do(t *rapid.T, failure error) {
	ctx, resource, token := s.draw(t)
	want := s.m.take(resource, token)
	err := s.f.Do(ctx, s.db, resource, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE data SET n = n + 1 WHERE id = ?", s.run)
		return errors.Join(err, failure)
	})
	if want.accepted() && failure != nil {
		require.ErrorIs(t, err, failure)
		return
	}
	requireVerdict(t, want, err)
	if want.accepted() {
		s.n++
	}
}

// inTx checks in a transaction of the caller's own. A mark that it raises is undone with it.
func (s *fenced) inTx(t *rapid.T, commits bool) {
	ctx, resource, token := s.draw(t)
	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	want := s.m.judge(resource, token)
	requireVerdict(t, want, s.f.Check(ctx, tx, resource))
	if !want.accepted() || !commits {
		require.NoError(t, tx.Rollback())
		return
	}
	s.exec(t, tx, "UPDATE data SET "+setN+" WHERE id = "+strconv.Itoa(s.run))
	require.NoError(t, tx.Commit())
	s.m.take(resource, token)
	s.n++
}

// updateRow has nothing to do with the marks: the row has a fence of its own.
func (s *fenced) updateRow(t *rapid.T) {
	ctx, _, token := s.draw(t)
	row := sqlfence.Row{Table: "data", Key: "id", ID: s.run}
	want := s.rowM.take(row.String(), token)
	requireVerdict(t, want, s.f.UpdateRow(ctx, s.db, row, setN))
	if want.accepted() {
		s.n++
	}
}
