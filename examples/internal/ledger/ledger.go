// Package ledger is the resource of the examples: a table in SQLite, behind HTTP. Each entry has to continue
// the one before, so writers have to take turns. A lock lets them; the ledger refuses the late write of a writer whose
// turn has ended.
package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

const (
	resource = "ledger" // the name of the ledger's mark
	maxBody  = 1 << 10  // bytes that are read of a request or an answer; an entry has about 60
)

// Entry is a line of the ledger. The writer computes Seq and Balance from the entry before.
type Entry struct {
	Seq     int
	Amount  int
	Balance int
	Writer  string
}

func (e Entry) String() string {
	return fmt.Sprintf("#%d (%+d, balance %d)", e.Seq, e.Amount, e.Balance)
}

// Next is the entry that continues e.
func (e Entry) Next(amount int, writer string) Entry {
	return Entry{Seq: e.Seq + 1, Amount: amount, Balance: e.Balance + amount, Writer: writer}
}

const schema = "CREATE TABLE entries (id INTEGER PRIMARY KEY, seq INTEGER, amount INTEGER, balance INTEGER, writer TEXT)"

// Ledger is the resource. It does not check what entries say.
type Ledger struct {
	db      *sql.DB
	marks   *sqlfence.Marks
	noFence bool
	say     func(format string, args ...any)

	mu   sync.Mutex  // guards said
	said fence.Token // the newest token whose write was reported
}

// Open creates an empty ledger in a folder. The ledger calls say for each claim, for the first write of each token, and
// for each write with a stale token. With noFence it accepts stale tokens, to show what fencing prevents. The caller
// closes the ledger.
func Open(ctx context.Context, dir string, noFence bool, say func(format string, args ...any)) (*Ledger, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "ledger.db"))+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	l := &Ledger{db: db, noFence: noFence, say: say}
	if l.marks, err = sqlfence.New(sqlfence.SQLite, sqlfence.Options{}); err == nil {
		err = l.marks.Migrate(ctx, db) // makes the table of the marks
	}
	if err == nil {
		_, err = db.ExecContext(ctx, schema)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return l, nil
}

// Close closes the database.
func (l *Ledger) Close() error { return l.db.Close() }

// claim begins a writer's tenure: from now on the ledger refuses older tokens than the one of the context.
func (l *Ledger) claim(ctx context.Context) error {
	if l.noFence {
		return nil
	}
	err := l.marks.Claim(ctx, l.db, resource)
	if err == nil {
		token, _ := fence.FromContext(ctx)
		l.say("refuses tokens below %v from now on", token)
	}
	return err
}

// write adds an entry. The check of the context's token and the write are one transaction.
func (l *Ledger) write(ctx context.Context, e Entry) error {
	const insert = "INSERT INTO entries (seq, amount, balance, writer) VALUES (?, ?, ?, ?)"
	values := []any{e.Seq, e.Amount, e.Balance, e.Writer}
	err := l.marks.Do(ctx, l.db, resource, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, insert, values...)
		return err
	})
	token, _ := fence.FromContext(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	stale, isStale := errors.AsType[*fence.StaleError](err)
	switch {
	case isStale && l.noFence:
		l.say("ACCEPTS %s's %v with the stale token %v: it does not check tokens", e.Writer, e, token)
		_, err = l.db.ExecContext(ctx, insert, values...)
	case isStale:
		l.say("REFUSES %s's %v: token %v is stale, %v was seen", e.Writer, e, token, stale.Highest)
	case err == nil && token > l.said:
		l.said = token
		l.say("accepts %s's %v with token %v", e.Writer, e, token)
	}
	return err
}

// Entries are the entries so far.
func (l *Ledger) Entries(ctx context.Context) (all []Entry, err error) {
	rows, err := l.db.QueryContext(ctx, "SELECT seq, amount, balance, writer FROM entries ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e Entry
		if err := rows.Scan(&e.Seq, &e.Amount, &e.Balance, &e.Writer); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

// Check returns an error if an entry does not continue the entry before it.
func Check(entries []Entry) error {
	var last Entry
	for _, e := range entries {
		if e != last.Next(e.Amount, e.Writer) {
			return fmt.Errorf("the ledger is corrupt: %s wrote %v without having seen %s's %v", e.Writer, e, last.Writer, last)
		}
		last = e
	}
	return nil
}

// Handler serves the ledger: POST /claim, POST /entries and GET /entries/last.
func (l *Ledger) Handler() (http.Handler, error) {
	// The middleware puts the token into the context, and refuses writes without one. It does not decide: the database
	// does.
	withToken, err := httpfence.NewMiddleware(
		func(*http.Request) string { return resource },
		func(context.Context, string, fence.Token) error { return nil },
		httpfence.Options{},
	)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, l.claim(r.Context()))
	})
	mux.HandleFunc("POST /entries", func(w http.ResponseWriter, r *http.Request) {
		var e Entry
		err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&e)
		if err == nil {
			err = l.write(r.Context(), e)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("GET /entries/last", func(w http.ResponseWriter, r *http.Request) {
		all, err := l.Entries(r.Context())
		answer(w, append([]Entry{{}}, all...)[len(all)], err) // the zero Entry if there is none
	})
	return withToken(mux), nil
}

func answer(w http.ResponseWriter, value any, err error) {
	switch {
	case err == nil:
		_ = json.NewEncoder(w).Encode(value) // an error means that the reader has gone
	case !httpfence.Error(w, err): // for a refusal it answers 412, with the token and the mark
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// Client writes to a ledger over HTTP. Each request carries the token of its context.
type Client struct {
	url  string
	http http.Client
}

// NewClient returns a client of the ledger at a URL.
func NewClient(ledger string) (*Client, error) {
	u, err := url.Parse(ledger)
	if err != nil {
		return nil, err
	}
	transport, err := httpfence.NewTransport(nil, u.Host) // sends tokens to this host only
	if err != nil {
		return nil, err
	}
	return &Client{url: ledger, http: http.Client{Transport: transport}}, nil
}

// Claim begins a tenure: from then on the ledger refuses older tokens. The error matches [fence.ErrStale] if the token
// is stale itself.
func (c *Client) Claim(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/claim", nil, nil)
}

// Append writes an entry. The error matches [fence.ErrStale] if the token is stale.
func (c *Client) Append(ctx context.Context, e Entry) error {
	return c.do(ctx, http.MethodPost, "/entries", e, nil)
}

// Last returns the newest entry, or the zero Entry if there is none.
func (c *Client) Last(ctx context.Context) (e Entry, err error) {
	err = c.do(ctx, http.MethodGet, "/entries/last", nil, &e)
	return e, err
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // nothing is lost: the body was only read
	if err := httpfence.ReadError(resp); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %s", r.URL, resp.Status, strings.TrimSpace(string(text)))
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out)
}
