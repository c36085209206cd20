package sqlmark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/internal/clip"
)

const (
	// DefaultLog is the usual name of the audit trail's table.
	DefaultLog = "fencing_token_log"

	// refusedSuffix and the name of the log form the name of the table of refusals.
	refusedSuffix = "_refused"
	keySuffix     = "_key" // of its index, on SQLite

	maxHolder = 255
)

// trail has the statements of an audit trail: one table of tenures, one of refusals. The database's clock gives the
// times.
type trail struct {
	ddl, probes                            []string
	open, last, supersede, release, refuse string

	// Queries and their parts. They return times as text, since drivers convert times differently.
	tenures, refusals string
	tables            string // for errors
	key, at, layout   string
	dialect           Dialect
}

// words are the differences between the dialects.
type words struct {
	name, label, id string // types of columns
	end, ignore     string // of CREATE TABLE; of INSERT, so that it does nothing if the row exists
	primary         string // key of the refusals

	instant string // type of a time
	now     string
	text    string // of a column, %s
	at      string // of an argument, %s, for a comparison with a column
	layout  string // of that argument, and of text
}

var dialectWords = map[Dialect]words{
	PostgreSQL: {
		name: `text COLLATE "C"`, label: "text", id: "bigint GENERATED ALWAYS AS IDENTITY",
		ignore: " ON CONFLICT DO NOTHING", primary: `PRIMARY KEY ("key", id)`,
		instant: "timestamptz", now: "clock_timestamp()",
		text: "to_char(%s AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
		at:   "CAST(%s AS text)::timestamp AT TIME ZONE 'UTC'", layout: "2006-01-02 15:04:05.000000",
	},
	MySQL: {
		name: fmt.Sprintf("VARBINARY(%d)", maxResource), label: "VARCHAR(255) CHARACTER SET utf8mb4",
		id: "BIGINT NOT NULL AUTO_INCREMENT UNIQUE", end: " ENGINE = InnoDB",
		ignore: " ON DUPLICATE KEY UPDATE token = token", primary: "PRIMARY KEY (`key`, id)",
		instant: "DATETIME(6)", now: "UTC_TIMESTAMP(6)", text: "DATE_FORMAT(%s, '%%Y-%%m-%%d %%H:%%i:%%s.%%f')",
		at: "CAST(%s AS DATETIME(6))", layout: "2006-01-02 15:04:05.000000",
	},
	SQLite: {
		name: "TEXT", label: "TEXT", id: "INTEGER",
		ignore: " ON CONFLICT DO NOTHING", primary: "PRIMARY KEY (id)",
		instant: "TEXT", now: "strftime('%Y-%m-%d %H:%M:%f', 'now')", text: "%s",
		at: "%s", layout: "2006-01-02 15:04:05.000",
	},
}

func newTrail(d Dialect, t table) *trail {
	w, key, refused := dialectWords[d], d.quote("key"), t.beside(d, refusedSuffix)
	text := func(column string) string { return "COALESCE(" + fmt.Sprintf(w.text, column) + ", '')" }
	of := func(statement string) string {
		return d.fill(statement, "{log}", t.quoted, "{refused}", refused.quoted, "{key}", key, "{now}", w.now,
			"{name}", w.name, "{label}", w.label, "{id}", w.id, "{instant}", w.instant, "{primary}", w.primary, "{end}", w.end,
			"{ignore}", w.ignore, "{superseded}", string(audit.CauseSuperseded),
			"{granted}", text("granted_at"), "{released}", text("released_at"), "{at}", text("refused_at"))
	}
	l := &trail{
		tables: t.quoted + " and " + refused.quoted, dialect: d, key: key, at: w.at, layout: w.layout,
		ddl: []string{
			of(`CREATE TABLE IF NOT EXISTS {log} (
	{key} {name} NOT NULL,
	token BIGINT NOT NULL,
	holder {label} NOT NULL,
	ttl_ms BIGINT NOT NULL,
	granted_at {instant} NOT NULL,
	released_at {instant},
	release_cause {label},
	PRIMARY KEY ({key}, token)
){end}`),
			of(`CREATE TABLE IF NOT EXISTS {refused} (
	id {id},
	{key} {name} NOT NULL,
	token BIGINT NOT NULL,
	highest BIGINT NOT NULL,
	holder {label} NOT NULL,
	refused_at {instant} NOT NULL,
	{primary}
){end}`),
		},
		probes: []string{
			of(`SELECT count(*) FROM (SELECT {key}, token, holder, ttl_ms, granted_at, released_at, release_cause FROM {log} LIMIT 0) probe`),
			of(`SELECT count(*) FROM (SELECT id, {key}, token, highest, holder, refused_at FROM {refused} LIMIT 0) probe`),
		},
		open: of(`INSERT INTO {log} ({key}, token, holder, ttl_ms, granted_at) VALUES (?, ?, ?, ?, {now}){ignore}`),
		last: of(`SELECT COALESCE(MAX(token), 0) FROM {log} WHERE {key} = ? AND token < ?`),
		supersede: of(`UPDATE {log} SET released_at = {now}, release_cause = '{superseded}'
WHERE {key} = ? AND token = ? AND released_at IS NULL`),
		release:  of(`UPDATE {log} SET released_at = {now}, release_cause = ? WHERE {key} = ? AND token = ? AND released_at IS NULL`),
		refuse:   of(`INSERT INTO {refused} ({key}, token, highest, holder, refused_at) VALUES (?, ?, ?, ?, {now})`),
		tenures:  of(`SELECT {key}, token, holder, ttl_ms, {granted}, {released}, COALESCE(release_cause, '') FROM {log}`),
		refusals: of(`SELECT {key}, token, highest, holder, {at} FROM {refused}`),
	}
	if d == SQLite { // it assigns row numbers only if they are the whole primary key, and an index keeps a resource's rows adjacent
		l.ddl = append(l.ddl, `CREATE INDEX IF NOT EXISTS `+t.beside(d, refusedSuffix+keySuffix).quoted+` ON `+
			d.quote(refused.name)+` (`+key+`, id)`)
	}
	return l
}

// begin writes the row of a tenure and ends the tenure before, in the transaction that raises the mark. On MySQL an
// update of a range, or of a row that is missing, would also lock gaps, where other resources insert their rows.
func (l *trail) begin(ctx context.Context, tx Conn, resource string, t fence.Token) error {
	var before int64
	if err := tx.QueryRow(ctx, l.last, resource, int64(t)).Scan(&before); err != nil {
		return err
	}
	if before > 0 {
		if _, err := tx.Exec(ctx, l.supersede, resource, before); err != nil {
			return err
		}
	}
	h := audit.FromContext(ctx)
	_, err := tx.Exec(ctx, l.open, resource, int64(t), holder(h), h.TTL.Milliseconds())
	return err
}

// stale writes the row of a refusal. The holder is that of the refused token, which need not be the token of ctx.
func (l *trail) stale(ctx context.Context, q Conn, e *fence.StaleError) error {
	h := audit.FromContext(fence.NewContext(ctx, e.Token))
	_, err := q.Exec(ctx, l.refuse, e.Resource, int64(e.Token), int64(e.Highest), holder(h))
	return err
}

// holder returns the name of a holder in a form that every database accepts: on MySQL a connection with charset=utf8
// refuses characters of four bytes.
func holder(h audit.Holder) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r):
			return ' '
		case r > 0xFFFF:
			return '?'
		}
		return r
	}, strings.ToValidUTF8(h.Name, "?"))
	if len(name) > maxHolder {
		name = strings.ToValidUTF8(name[:maxHolder], "")
	}
	return name
}

// parse reads a time from its text. An empty text is the zero time.
func (l *trail) parse(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.DateTime, text) // accepts a fraction
}

const (
	defaultLimit = 1000
	maxLimit     = 100_000
)

// Query selects rows of an audit trail.
type Query struct {
	Resource     string    // empty for all
	Since, Until time.Time // zero for no bound
	Limit        int       // of tenures and of refusals each, the newest; default 1000
}

// Release records the end of the tenure of ctx's token.
func (e *Engine[D, T]) Release(ctx context.Context, db D, resource string, cause audit.Cause) error {
	c, err := e.admit(ctx, resource, Writer, e.fitTrail(db))
	if err != nil {
		return err
	}
	if cause != audit.CauseExplicit && cause != audit.CauseExpired && cause != audit.CauseRevoked {
		return fmt.Errorf("%s: release %q: cause is %s, want %s, %s or %s",
			e.Package, resource, clip.Quote(string(cause)), audit.CauseExplicit, audit.CauseExpired, audit.CauseRevoked)
	}
	return e.retry(ctx, func() error {
		err := e.within(ctx, db, func(tx Conn) error {
			_, err := tx.Exec(ctx, e.trail.release, string(cause), resource, int64(c.Token))
			return err
		})
		return e.explain("release", resource, err)
	})
}

// LogRefusal records the refusal in err, if there is one.
func (e *Engine[D, T]) LogRefusal(ctx context.Context, db D, err error) error {
	if err := e.fitTrail(db); err != nil {
		return err
	}
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale.Read {
		return nil
	}
	if err := e.checkResource("StaleError.Resource", stale.Resource); err != nil {
		return err
	}
	return e.retry(ctx, func() error { return e.explain("log refusal", stale.Resource, e.record(ctx, db)(stale)) })
}

// fitTrail returns an error if the engine or the pool cannot be used, or if there is no audit trail.
func (e *Engine[D, T]) fitTrail(db D) error {
	if err := e.fit(db); err != nil || e.trail != nil {
		return err
	}
	return fmt.Errorf("%s: there is no audit trail: Options.Log is empty, want a table such as %q", e.Package, DefaultLog)
}

// record returns a function that writes a refusal to the audit trail in a separate transaction.
func (e *Engine[D, T]) record(ctx context.Context, db D) func(*fence.StaleError) error {
	return func(stale *fence.StaleError) error {
		return e.within(ctx, db, func(tx Conn) error { return e.trail.stale(ctx, tx, stale) })
	}
}

// refused returns stale, the refusal by a mark or nil. If there is an audit trail, record first writes a writer's
// refusal to it.
func (e *Engine[D, T]) refused(verb, resource string, stale error, record func(*fence.StaleError) error) error {
	refusal, ok := errors.AsType[*fence.StaleError](stale)
	if e.trail == nil || !ok || refusal.Read {
		return stale
	}
	if err := record(refusal); err != nil {
		return errors.Join(stale, e.explain(verb, resource, fmt.Errorf("refused, but not recorded in the audit trail: %w", err)))
	}
	return stale
}

// History returns the tenures that overlap the time of the query and the refusals in it, both with the oldest first.
func (e *Engine[D, T]) History(ctx context.Context, db D, q Query) (tenures []audit.Tenure, refusals []audit.Refusal, err error) {
	if err := e.fitTrail(db); err != nil {
		return nil, nil, err
	}
	switch {
	case q.Limit < 0 || q.Limit > maxLimit:
		return nil, nil, fmt.Errorf("%s: history: Query.Limit is %d, want 0 for %d, or 1 to %d", e.Package, q.Limit, defaultLimit, maxLimit)
	case !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until):
		return nil, nil, fmt.Errorf("%s: history: Query.Since is %s, want a time before Query.Until, %s", e.Package, q.Since, q.Until)
	}
	q.Limit = cmp.Or(q.Limit, defaultLimit)
	if q.Resource != "" {
		if err := e.checkResource("Query.Resource", q.Resource); err != nil {
			return nil, nil, err
		}
	}
	rows := func(scan func(Scanner) error, query string, args ...any) error {
		return e.inside(ctx, db, func(tx T) error { return e.lib.Rows(ctx, tx, scan, query, args...) })
	}
	err = e.retry(ctx, func() (err error) {
		if tenures, err = e.trail.readTenures(rows, q); err == nil {
			refusals, err = e.trail.readRefusals(rows, q)
		}
		return e.explain("history", q.Resource, err)
	})
	if err != nil {
		return nil, nil, err
	}
	slices.Reverse(tenures)
	slices.Reverse(refusals)
	return tenures, refusals, nil
}

// rows calls scan for each row of a query.
type rows func(scan func(Scanner) error, query string, args ...any) error

func (l *trail) readTenures(from rows, q Query) (all []audit.Tenure, err error) {
	where := conditions{trail: l}
	where.add(q.Resource != "", l.key+" = %s", q.Resource)
	where.time(q.Since, "(released_at IS NULL OR released_at >= %s)")
	where.time(q.Until, "granted_at < %s")
	query := l.tenures + where.String() + fmt.Sprintf(" ORDER BY granted_at DESC, token DESC LIMIT %d", q.Limit)
	err = from(func(row Scanner) error {
		var t audit.Tenure
		var ttl int64
		var granted, released string
		err := row.Scan(&t.Resource, &t.Token, &t.Holder.Name, &ttl, &granted, &released, &t.Cause)
		if err != nil {
			return err
		}
		t.Holder.TTL = time.Duration(ttl) * time.Millisecond
		var errGranted, errReleased error
		t.Granted, errGranted = l.parse(granted)
		t.Released, errReleased = l.parse(released)
		all = append(all, t)
		return errors.Join(errGranted, errReleased)
	}, query, where.args...)
	return all, err
}

func (l *trail) readRefusals(from rows, q Query) (all []audit.Refusal, err error) {
	where := conditions{trail: l}
	where.add(q.Resource != "", l.key+" = %s", q.Resource)
	where.time(q.Since, "refused_at >= %s")
	where.time(q.Until, "refused_at < %s")
	query := l.refusals + where.String() + fmt.Sprintf(" ORDER BY id DESC LIMIT %d", q.Limit)
	err = from(func(row Scanner) error {
		var r audit.Refusal
		var at string
		err := row.Scan(&r.Resource, &r.Token, &r.Highest, &r.Holder.Name, &at)
		if err != nil {
			return err
		}
		r.At, err = l.parse(at)
		all = append(all, r)
		return err
	}, query, where.args...)
	return all, err
}

// conditions is a WHERE clause.
type conditions struct {
	trail *trail
	list  []string
	args  []any
}

// add adds a condition, with %s for its argument.
func (c *conditions) add(wanted bool, condition string, arg any) {
	if wanted {
		c.args = append(c.args, arg)
		c.list = append(c.list, fmt.Sprintf(condition, c.trail.dialect.placeholder(len(c.args))))
	}
}

func (c *conditions) time(t time.Time, condition string) {
	c.add(!t.IsZero(), fmt.Sprintf(condition, c.trail.at), t.UTC().Format(c.trail.layout))
}

func (c *conditions) String() string {
	if len(c.list) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.list, " AND ")
}
