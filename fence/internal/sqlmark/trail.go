package sqlmark

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
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
