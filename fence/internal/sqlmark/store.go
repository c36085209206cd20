package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

// Dialect is the kind of database.
type Dialect int

// The dialects. MySQL is also that of MariaDB.
const (
	PostgreSQL Dialect = iota + 1
	MySQL
	SQLite
)

// String returns the name of the constant.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	default:
		return fmt.Sprintf("Dialect(%d)", int(d))
	}
}

// quote quotes a name that [legalIdentifier] has accepted, so that it can be a reserved word.
func (d Dialect) quote(identifier string) string {
	if d == MySQL {
		return "`" + identifier + "`"
	}
	return `"` + identifier + `"`
}

// placeholder returns the placeholder of the n-th argument, counted from 1.
func (d Dialect) placeholder(n int) string {
	if d == PostgreSQL {
		return fmt.Sprintf("$%d", n)
	}
	return "?"
}

// fill returns statements for the dialect. They are written with ? for each argument, and with the names of the blanks,
// which are in pairs with their values.
func (d Dialect) fill(statement string, blanks ...string) string {
	parts := strings.Split(strings.NewReplacer(blanks...).Replace(statement), "?")
	for n := range parts[1:] {
		parts[n] += d.placeholder(n + 1)
	}
	return strings.Join(parts, "")
}

// store has the differences between the databases.
type store interface {
	base() *statements

	// lock is the guard: it locks the marks until the transaction ends, and returns them. If they refuse c, c is stale
	// or of another lock. If they have c, no newer token is accepted until the transaction ends; neither is any other
	// transaction with the same token, except readers, and writers in the shared form. Otherwise the caller must claim,
	// or settle and raise.
	lock(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) (markState, error)

	// settle is called after lock in a transaction that cannot begin again, unless the marks refuse c. If they do not
	// have c, it takes the lock that raise needs, and returns the marks again. It also reports whether the transaction's
	// snapshot may be older than its lock on the marks.
	settle(ctx context.Context, tx Conn, resource string, c Claimant, seen markState) (_ markState, late bool, err error)

	// announce writes the token that a claim commits before it waits for transactions with locks on the marks. It only
	// refuses older tokens. The new token must not pass by it, because those transactions have not ended.
	announce(ctx context.Context, q Conn, resource string, c Claimant, seen markState) error

	// pin is called after the guard of Do has passed, and pinned with pin's result after the caller's function has
	// succeeded. pinned reports whether the transaction is still the one of the guard. A function can end it with DDL
	// or with COMMIT as SQL, and the driver does not notice. Its later writes are then committed without the fence.
	pin(ctx context.Context, tx Conn) (int64, error)
	pinned(ctx context.Context, tx Conn, pin int64) (bool, error)

	kind(err error) kind
}

var stores = map[Dialect]func(table) store{
	PostgreSQL: newPostgreSQL,
	MySQL:      newMySQL,
	SQLite:     newSQLite,
}

// statements are the statements of one dialect for one table, and what they do alike in all dialects.
type statements struct {
	table table

	before  string   // serializes the changes of tables; none if empty
	ddl     string   // creates the table
	columns []string // add the columns that tables of earlier versions lack; those go on working

	// flaws returns why the table cannot be used: absent, incomplete or a text; or "".
	flaws string

	// These queries read the columns of see. They differ in the locks that they take.
	look  string // none
	peek  string // it sees committed marks only, and does not wait for a lock of the shared form
	alone string // of a writer, and of a reader that raises marks
	share string // of a writer in the shared form
	last  string // of a writer that raises marks: it waits for readers too

	insert, update, trace string

	// writesFirst is set where a transaction that has read does not wait for the write lock, but fails.
	writesFirst bool
}

func (s *statements) base() *statements { return s }

// newStatements fills the parts that all dialects have.
func newStatements(d Dialect, t table, look, ignore string) *statements {
	of := func(statement string) string { return d.fill(statement, "{marks}", t.quoted) }
	look = of(look)
	return &statements{
		table: t, look: look, peek: look, alone: look, share: look, last: look,
		insert: of(`INSERT INTO {marks} (resource, token) VALUES (?, 0) ` + ignore),
		update: of(`UPDATE {marks} SET token = ?, read_token = ?, lock_name = ? ` +
			`WHERE resource = ? AND token = ? AND read_token = ? AND lock_name = ?`),
		trace: of(`UPDATE {marks} SET token = token WHERE resource = ?`),
	}
}

// see runs one of the queries. If the marks have no row, it returns none of them.
func (s *statements) see(ctx context.Context, q Conn, query, resource string, args ...any) (seen markState, err error) {
	err = q.QueryRow(ctx, query, append([]any{resource}, args...)...).Scan(&seen.Write, &seen.Read, &seen.Lock,
		&seen.announced.Write, &seen.announced.Read, &seen.announced.Lock, &seen.snapshot)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return seen, err
}

// errUndone reports that a row is not as the transaction has just locked it.
var errUndone = errors.New("the transaction was rolled back between two statements, as by a conflict in a cluster")

// change locks the marks with a query and changes them to the result of next, which it returns. known are marks that
// were seen before.
func (s *statements) change(ctx context.Context, tx Conn, query, resource string, known marks, next func(marks) marks) (marks, error) {
	if known == (marks{}) || s.writesFirst { // there may be no row that can be locked
		if _, err := tx.Exec(ctx, s.insert, resource); err != nil {
			return marks{}, err
		}
	}
	seen, err := s.see(ctx, tx, query, resource)
	if err != nil {
		return marks{}, err
	}
	old, m := seen.marks, next(seen.marks)
	if m == old {
		return m, nil
	}
	// The comparison finds a transaction that has lost its lock. Its update would be committed by itself.
	n, err := tx.Exec(ctx, s.update, int64(m.Write), int64(m.Read), m.Lock, resource, int64(old.Write), int64(old.Read), old.Lock)
	if err == nil && n == 0 {
		err = errUndone
	}
	return m, err
}

// raise raises the marks to the claimant's, unless they refuse it, and returns them. It waits for transactions with
// locks on the marks, for those of readers only if c is a writer.
func (s *statements) raise(ctx context.Context, tx Conn, resource string, c Claimant, known marks) (marks, error) {
	query := s.last
	if c.Read {
		query = s.alone
	}
	return s.change(ctx, tx, query, resource, known, func(m marks) marks {
		if m.Refuse(resource, c) != nil {
			return m
		}
		return lifted(m, c)
	})
}

// announce does nothing where later transactions wait behind a claim.
func (*statements) announce(context.Context, Conn, string, Claimant, markState) error { return nil }

// leave writes the marks' row if the guard needs that.
func (s *statements) leave(ctx context.Context, tx Conn, resource string, seen markState) error {
	if !seen.trace {
		return nil
	}
	_, err := tx.Exec(ctx, s.trace, resource)
	return err
}

// savepoint recognises a transaction by a savepoint, which ends with it. PostgreSQL has transaction numbers, which cost
// less.
type savepoint struct{ gone func(error) bool }

func (savepoint) pin(ctx context.Context, tx Conn) (int64, error) {
	_, err := tx.Exec(ctx, "SAVEPOINT leasefence_guard")
	return 0, err
}

func (s savepoint) pinned(ctx context.Context, tx Conn, _ int64) (bool, error) {
	_, err := tx.Exec(ctx, "RELEASE SAVEPOINT leasefence_guard")
	if s.gone(err) {
		return false, nil
	}
	return true, err
}

// Claimant is the call of a verb, and marks are those of a resource. [admission.Marks.Refuse] says which claimants they
// accept.
type (
	Claimant = admission.Bid
	marks    = admission.Marks
)

// verb returns the name of a verb in errors.
func verb(c Claimant, name string) string {
	if c.Read && !c.Above {
		return name + " to read"
	}
	return name
}

// lifted returns the marks after the claimant was accepted. Unlike [admission.Marks.After] it keeps and raises a read
// mark that is not above the write mark: guards of readers look for their own token in it.
func lifted(m marks, c Claimant) marks {
	if c.Read {
		m.Read = max(m.Read, c.Token)
	} else {
		m.Write = max(m.Write, c.Token)
	}
	if m.Lock == "" || c.Moves {
		m.Lock = c.Lock
	}
	return m
}

// markState is the result of a guard.
type markState struct {
	marks           // before the guard
	announced marks // by claims of one lock that may still wait for older transactions; these marks only refuse
	snapshot  bool  // the transaction's snapshot may be older than its lock on the mark
	trace     bool  // the transaction has an exclusive lock on the mark and must write it
}

// has reports whether an accepted claimant changes nothing.
func (s markState) has(c Claimant) bool { return lifted(s.marks, c) == s.marks }

// withAnnounced returns the marks with those that are announced, if these count for the claimant. The announcement of
// another lock's claim does not: that claim may have been refused since.
func (s markState) withAnnounced(c Claimant) marks {
	m := s.marks
	if follows := lifted(m, c).Lock; follows == "" || follows == s.announced.Lock {
		m.Write, m.Read = max(m.Write, s.announced.Write), max(m.Read, s.announced.Read)
	}
	return m
}

// table is a legal name, in parts and quoted for its dialect.
type table struct {
	schema, name string // schema may be empty
	quoted       string
}

func parseTable(pkg, field, s string, most int, dialect Dialect) (table, error) {
	schema, name, found := strings.Cut(s, ".")
	if !found {
		schema, name = "", schema
	}
	if found && !legalIdentifier(schema, maxIdentifier) || !legalIdentifier(name, most) {
		return table{}, fmt.Errorf("%s: Options.%s is %s, want table or schema.table, each 1 to %d letters, "+
			"digits and underscores, the first not a digit", pkg, field, clip.Quote(s), most)
	}
	return newTable(schema, name, dialect), nil
}

func newTable(schema, name string, dialect Dialect) table {
	t := table{schema: schema, name: name, quoted: dialect.quote(name)}
	if schema != "" {
		t.quoted = dialect.quote(schema) + "." + t.quoted
	}
	return t
}

// beside returns the table in the same schema whose name is t's name with a suffix.
func (t table) beside(dialect Dialect, suffix string) table {
	return newTable(t.schema, t.name+suffix, dialect)
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func legalIdentifier(s string, most int) bool { return len(s) <= most && identifier.MatchString(s) }
