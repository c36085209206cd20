package mix

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// store serves the resources of a round over HTTP. Beside each is an unfenced control, which gets the same writes and
// accepts all of them. Its Close waits for the requests that it has received.
type store struct {
	*httptest.Server

	log      record
	guard    fence.Guard
	database *database        // of the resource that is in a database
	items    map[string]*item // by name; not changed
	inner    http.Handler     // checks the token, then applies
	check    bool             // whether tokens are checked; false: sabotage
}

type item struct {
	form form
	sql  bool // it is in the database

	mu    sync.Mutex // guards the fields below; held until the event is recorded, never while a token is checked
	value string     // of a set: its elements, separated by commas
	steps int        // claims and updates that writers made
}

func newStore(tb testing.TB, log record, n names, d *database, check bool) *store {
	tb.Helper()
	s := &store{log: log, database: d, items: map[string]*item{}, check: check}
	for _, name := range n.all() {
		s.items[name] = &item{form: n.form(name), sql: n.inSQL(name)}
	}
	middleware, err := httpfence.NewAtomicMiddleware(
		func(r *http.Request) string { return r.FormValue("name") }, &s.guard, httpfence.Options{Refuse: s.refuse})
	require.NoError(tb, err)
	s.inner = middleware(http.HandlerFunc(s.apply))
	s.Server = httptest.NewServer(s)
	return s
}

func (s *store) addr() string { return s.Listener.Addr().String() }

// ServeHTTP records that the control accepts a request, and then passes it to the fenced resource.
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := requestOf(r)
	it := s.items[q.name]
	if it == nil {
		http.Error(w, "no such resource", http.StatusNotFound)
		return
	}
	if !q.verb.Reads() && !q.verb.Claims() {
		s.log.Record(q.event(q.name+history.UnfencedMark, history.OK, 0))
	}
	switch {
	case !s.check:
		s.apply(w, r)
	case it.sql:
		s.serveSQL(w, r, q)
	default:
		s.inner.ServeHTTP(w, r)
	}
}

// lateMark ends the value of a write that a register applies slowly, so that other requests wait: a token that is not
// stale when its write arrives may be stale when the write is applied.
const lateMark = ".late"

// apply serves a request whose token has been checked.
func (s *store) apply(w http.ResponseWriter, r *http.Request) {
	q := requestOf(r)
	it := s.items[q.name]
	if q.verb.OfReader() {
		s.serveReader(w, r, it, q)
		return
	}
	if strings.HasSuffix(q.value, lateMark) {
		time.Sleep(40 * time.Millisecond)
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.steps++
	switch q.verb {
	case history.Write, history.Increment:
		it.value = q.value
	case history.Add:
		it.value = strings.TrimPrefix(it.value+","+q.value, ",")
	case history.Read:
		q.value = it.read()
		it.steps--
	}
	s.log.Record(q.event(q.name, history.OK, s.guard.Marks()[q.name]))
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

// serveReader serves a reader, whose token the middleware has checked. It asks the guard again, and repeats that if a
// writer's step came before the read is recorded. So the record is in order, and no request waits for the guard while
// it holds the item's mutex.
func (s *store) serveReader(w http.ResponseWriter, r *http.Request, it *item, q request) {
	check := s.guard.CheckRead
	if q.verb == history.ClaimRead {
		check = s.guard.ClaimRead
	}
	for done := false; !done; {
		it.mu.Lock()
		steps := it.steps
		it.mu.Unlock()
		if s.check {
			if err := check(q.name, fence.ReadToken(q.token)); err != nil {
				s.refuse(w, r, err)
				return
			}
		}
		it.mu.Lock()
		if done = it.steps == steps; done {
			if q.verb == history.CheckRead {
				q.value = it.read()
			}
			s.log.Record(q.event(q.name, history.OK, fence.Token(s.guard.ReadMarks()[q.name])))
		}
		it.mu.Unlock()
	}
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

// refuse answers and records a request that the middleware or the database has refused.
func (s *store) refuse(w http.ResponseWriter, r *http.Request, err error) {
	q, outcome := requestOf(r), history.Failed
	var highest fence.Token
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		outcome, highest = history.Refused, stale.Highest
	}
	e := q.event(q.name, outcome, highest)
	e.Error = err.Error()
	s.log.Record(e)
	if !httpfence.Error(w, err) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

type request struct {
	name  string
	id    int64
	verb  history.Verb
	token fence.Token
	value string
}

func requestOf(r *http.Request) request {
	id, _ := strconv.ParseInt(r.FormValue("request"), 10, 64)
	token, _ := fence.Parse(r.Header.Get(httpfence.Header) + r.Header.Get(httpfence.ReadHeader)) // at most one of them
	return request{name: r.FormValue("name"), id: id, verb: history.Verb(r.FormValue("verb")), token: token, value: r.FormValue("value")}
}

func (q request) event(name string, outcome history.Outcome, highest fence.Token) history.Event {
	return history.Event{
		Kind: history.Apply, Name: name, Verb: q.verb, Token: q.token, Request: q.id,
		Outcome: outcome, Value: q.value, Highest: highest,
	}
}

func (it *item) read() string {
	if it.form == counter {
		return cmp.Or(it.value, "0")
	}
	return it.value
}

// database has registers that package sqlfence fences: the check of the token is part of the write's transaction.
type database struct {
	db    *sql.DB
	marks *sqlfence.Marks

	// Held alone by whoever records a step after its commit, and shared by those that record it before: SQLite has one
	// writer at a time, so the record is in order.
	order sync.RWMutex
}

func openDatabase(ctx context.Context, tb testing.TB) *database {
	tb.Helper()
	marks, err := sqlfence.New(sqlfence.SQLite, sqlfence.Options{})
	require.NoError(tb, err)
	dsn := "file:" + filepath.Join(tb.TempDir(), "resources.sqlite") +
		"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	db, err := sql.Open("sqlite", dsn)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	require.NoError(tb, marks.Migrate(ctx, db))
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS registers (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
	require.NoError(tb, err)
	return &database{db: db, marks: marks}
}

// serveSQL serves a request to a register in the database. It does not end when the client goes away: what is recorded
// must be committed.
func (s *store) serveSQL(w http.ResponseWriter, r *http.Request, q request) {
	ctx := fence.NewContext(context.WithoutCancel(r.Context()), q.token)
	record := func() { s.log.Record(q.event(q.name, history.OK, q.token)) }
	var err error
	switch {
	case q.verb == history.Claim, q.verb.OfReader():
		s.database.order.Lock()
		if err = s.database.claimOrRead(ctx, &q); err == nil {
			record()
		}
		s.database.order.Unlock()
	default:
		s.database.order.RLock()
		err = s.database.marks.Do(ctx, s.database.db, q.name, func(ctx context.Context, tx *sql.Tx) (err error) {
			if q.verb == history.Read {
				q.value, err = registerIn(ctx, tx, q.name)
			} else {
				_, err = tx.ExecContext(ctx, "INSERT INTO registers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
					q.name, q.value)
			}
			if err == nil {
				record()
			}
			return err
		})
		s.database.order.RUnlock()
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

func (d *database) claimOrRead(ctx context.Context, q *request) error {
	if q.verb == history.Claim {
		return d.marks.Claim(ctx, d.db, q.name)
	}
	ctx = fence.NewReadContext(ctx, fence.ReadToken(q.token))
	if q.verb == history.ClaimRead {
		return d.marks.ClaimRead(ctx, d.db, q.name)
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit there is nothing to roll back
	if err := d.marks.CheckRead(ctx, tx, q.name); err != nil {
		return err
	}
	if q.value, err = registerIn(ctx, tx, q.name); err != nil {
		return err
	}
	return tx.Commit()
}

func registerIn(ctx context.Context, tx *sql.Tx, name string) (value string, err error) {
	err = tx.QueryRowContext(ctx, "SELECT value FROM registers WHERE name = ?", name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}
