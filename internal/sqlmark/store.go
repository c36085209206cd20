package sqlmark

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
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

// quote makes a name that [legalIdentifier] has passed independent of the words that the dialect reserves.
func (d Dialect) quote(identifier string) string {
	if d == MySQL {
		return "`" + identifier + "`"
	}
	return `"` + identifier + `"`
}

// placeholder is that of the n-th argument, counted from 1.
func (d Dialect) placeholder(n int) string {
	if d == PostgreSQL {
		return fmt.Sprintf("$%d", n)
	}
	return "?"
}

// sight is what a guard has found.
type sight struct {
	mark     fence.Token // as it was before, 0 if there was none
	snapshot bool        // what the transaction reads may be older than its lock on the mark
}

// store is what differs between the databases.
type store interface {
	schema() []string

	// verify returns an error if the table is missing or cannot serve.
	verify(ctx context.Context, q Conn) error

	// migrate makes the table, in a transaction of its own.
	migrate(ctx context.Context, tx Conn) error

	// peek returns the mark that is committed, 0 if there is none. It does not wait for the shared form.
	peek(ctx context.Context, q Conn, resource string) (fence.Token, error)

	// announce is what a claim has to commit before it waits for those that hold the mark.
	announce(ctx context.Context, q Conn, resource string, t fence.Token) error

	// raise raises the mark to t if it is lower, and returns what it is then.
	raise(ctx context.Context, q Conn, resource string, t fence.Token) (fence.Token, error)

	// lock is the guard. If the mark it returns is t, the transaction holds it until its end: alone, or together with
	// others of the shared form. If it is higher, t is stale. If it is lower, there is more to do.
	lock(ctx context.Context, tx Conn, resource string, t fence.Token, shared bool) (sight, error)

	// settle is called after lock in a transaction that is not begun anew when the mark is lower than t: it raises the
	// mark, which the transaction then holds alone, and returns it. It also reports whether what the transaction reads
	// may be older than its lock on the mark.
	settle(ctx context.Context, tx Conn, resource string, t fence.Token, seen sight, shared bool) (
		mark fence.Token, late bool, err error)

	// transient reports whether the server has undone the transaction for a reason that is gone when it is repeated.
	transient(err error) bool

	// undone reports that an error of COMMIT says that nothing was committed.
	undone(err error) bool

	// noTable reports whether the guard's table is missing.
	noTable(err error) bool
}

var stores = map[Dialect]func(table) store{
	PostgreSQL: newPostgreSQL,
	MySQL:      newMySQL,
	SQLite:     newSQLite,
}
