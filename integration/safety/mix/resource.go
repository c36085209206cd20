package mix

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
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

	log      *history.Recorder
	guard    fence.Guard
	database *database        // of the resource that is in a database
	items    map[string]*item // by name; not changed
	inner    http.Handler     // checks the token, then applies
}

type item struct {
	sql      bool // it is in the database
	unfenced bool // it accepts all tokens

	mu    sync.Mutex // guards the fields below; held until the event is recorded
	value string     // of a set: its elements, separated by commas
}

func newStore(tb testing.TB, log *history.Recorder, n names, d *database, unfenced string) *store {
	tb.Helper()
	s := &store{log: log, database: d, items: map[string]*item{}}
	for _, name := range n.all() {
		s.items[name] = &item{sql: n.inSQL(name), unfenced: name == unfenced}
		if n.update(name) == history.Increment {
			s.items[name].value = "0"
		}
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
	it := s.items[q.Name]
	if it == nil {
		http.Error(w, "no such resource", http.StatusNotFound)
		return
	}
	if q.Verb.Updates() {
		control := q
		control.Name += history.UnfencedMark
		s.log.Record(control)
	}
	switch {
	case it.unfenced:
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
	it := s.items[q.Name]
	if strings.HasSuffix(q.Value, lateMark) {
		time.Sleep(40 * time.Millisecond)
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	q.Highest = s.guard.Marks()[q.Name]
	if q.Verb.OfReader() && !it.unfenced {
		// A newer writer may have come since the check of the middleware, which has raised the mark: only a broken guard
		// makes this one wait.
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if err := s.guard.CheckReadContext(ctx, q.Name, fence.ReadToken(q.Token)); err != nil {
			s.refuse(w, r, err)
			return
		}
		q.Highest = fence.Token(s.guard.ReadMarks()[q.Name])
	}
	switch q.Verb {
	case history.Write, history.Increment:
		it.value = q.Value
	case history.Add:
		it.value = strings.TrimPrefix(it.value+","+q.Value, ",")
	case history.Read, history.CheckRead:
		q.Value = it.value
	}
	s.log.Record(q)
	_, _ = w.Write([]byte(q.Value)) // it fails only if the client has gone
}

// refuse answers and records a request that the middleware or the database has refused.
func (s *store) refuse(w http.ResponseWriter, r *http.Request, err error) {
	q := requestOf(r)
	q.Outcome, q.Error = history.Failed, err.Error()
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		q.Outcome, q.Highest = history.Refused, stale.Highest
	}
	s.log.Record(q)
	if !httpfence.Error(w, err) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// requestOf returns a request as the event of its application.
func requestOf(r *http.Request) history.Event {
	id, _ := strconv.ParseInt(r.FormValue("request"), 10, 64)
	token, _ := fence.Parse(r.Header.Get(httpfence.Header) + r.Header.Get(httpfence.ReadHeader)) // at most one of them
	return history.Event{
		Kind: history.Apply, Name: r.FormValue("name"), Request: id, Verb: history.Verb(r.FormValue("verb")), Token: token,
		Value: r.FormValue("value"), Outcome: history.OK,
	}
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
func (s *store) serveSQL(w http.ResponseWriter, r *http.Request, q history.Event) {
	ctx := fence.NewContext(context.WithoutCancel(r.Context()), q.Token)
	q.Highest = q.Token
	var err error
	switch {
	case q.Verb == history.Claim, q.Verb.OfReader():
		s.database.order.Lock()
		if err = s.database.claimOrRead(ctx, &q); err == nil {
			s.log.Record(q)
		}
		s.database.order.Unlock()
	default:
		s.database.order.RLock()
		err = s.database.marks.Do(ctx, s.database.db, q.Name, func(ctx context.Context, tx *sql.Tx) (err error) {
			if q.Verb == history.Read {
				q.Value, err = registerIn(ctx, tx, q.Name)
			} else {
				_, err = tx.ExecContext(ctx, "INSERT INTO registers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
					q.Name, q.Value)
			}
			if err == nil {
				s.log.Record(q)
			}
			return err
		})
		s.database.order.RUnlock()
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	_, _ = w.Write([]byte(q.Value)) // it fails only if the client has gone
}

func (d *database) claimOrRead(ctx context.Context, q *history.Event) error {
	if q.Verb == history.Claim {
		return d.marks.Claim(ctx, d.db, q.Name)
	}
	ctx = fence.NewReadContext(ctx, fence.ReadToken(q.Token))
	if q.Verb == history.ClaimRead {
		return d.marks.ClaimRead(ctx, d.db, q.Name)
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit there is nothing to roll back
	if err := d.marks.CheckRead(ctx, tx, q.Name); err != nil {
		return err
	}
	if q.Value, err = registerIn(ctx, tx, q.Name); err != nil {
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

// writer sends requests to the resources of a round. Its network loses some answers and delays some requests.
type writer struct {
	log    *history.Recorder
	addr   string
	client *http.Client
	close  func() // closes its idle connections
}

func newWriter(log *history.Recorder, addr string, seed uint64) (*writer, error) {
	base := &http.Transport{MaxIdleConnsPerHost: 16}
	transport, err := httpfence.NewTransport(&lossy{base: base, rng: rand.New(rand.NewPCG(seed, 1))}, addr)
	if err != nil {
		return nil, err
	}
	return &writer{
		log: log, addr: addr, close: base.CloseIdleConnections,
		client: &http.Client{Transport: transport, Timeout: 15 * time.Second},
	}, nil
}

// send sends one request, without retries, and records it. The request does not end with the handle.
func (w *writer) send(actor, name string, op int64, t fence.Token, verb history.Verb, value string) (string, history.Outcome, error) {
	id := w.log.ID()
	if verb == history.Add {
		value = strconv.FormatInt(id, 10)
	}
	w.log.Record(history.Event{
		Kind: history.Send, Op: op, Actor: actor, Name: name, Token: t, Verb: verb, Value: value, Request: id,
	})
	got, outcome, err := w.ask(name, id, t, verb, value)
	e := history.Event{Kind: history.Answer, Request: id, Outcome: outcome, Value: got}
	if err != nil {
		e.Error = err.Error()
	}
	w.log.Record(e)
	return got, outcome, err
}

// ask makes the request and says what its sender knows of the outcome.
func (w *writer) ask(name string, id int64, t fence.Token, verb history.Verb, value string) (string, history.Outcome, error) {
	method := http.MethodPost
	if verb.Reads() || verb.OfReader() { // a reader's claim writes no data
		method = http.MethodGet
	}
	q := url.Values{"name": {name}, "request": {strconv.FormatInt(id, 10)}, "verb": {string(verb)}, "value": {value}}
	ctx := fence.NewContext(context.Background(), t)
	if verb.OfReader() {
		ctx = fence.NewReadContext(context.Background(), fence.ReadToken(t))
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+w.addr+"/?"+q.Encode(), http.NoBody)
	if err != nil {
		return "", history.Failed, err
	}
	resp, err := w.client.Do(r)
	if err != nil {
		return "", history.Unknown, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := httpfence.ReadError(resp); errors.Is(err, fence.ErrStale) {
		return "", history.Refused, err
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return "", history.Unknown, err
	case resp.StatusCode != http.StatusOK:
		return "", history.Unknown, fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(body), history.OK, nil
}

// errLost is the error of a request whose answer lossy has dropped.
var errLost = errors.New("the answer was lost")

// lossy delays one request of 50 and loses one answer of 50.
type lossy struct {
	base http.RoundTripper

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

// RoundTrip makes one attempt: a request of unknown outcome is not repeated.
func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	fate, delay := l.rng.IntN(50), time.Duration(l.rng.IntN(700))*time.Millisecond
	l.mu.Unlock()
	if fate == 0 {
		time.Sleep(delay)
	}
	resp, err := l.base.RoundTrip(r)
	if err == nil && fate == 1 {
		_ = resp.Body.Close()
		return nil, errLost
	}
	return resp, err
}
