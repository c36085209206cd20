package sqlmark

import (
	"context"
	"fmt"
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

// store has the differences between the databases.
type store interface {
	schema() []string

	// verify returns an error if the table is missing or cannot be used, except for columns that extend adds.
	verify(ctx context.Context, q Conn) error

	// migrate creates the table, in a separate transaction.
	migrate(ctx context.Context, tx Conn) error

	// complete reads the columns that tables of earlier versions lack, and extend adds those that are missing, in a
	// separate transaction. The statements of earlier versions go on working.
	complete(ctx context.Context, q Conn) error
	extend(ctx context.Context, tx Conn) error

	// peek reads the committed marks. It does not wait for the shared form.
	peek(ctx context.Context, q Conn, resource string) (markState, error)

	// announce writes the token that a claim commits before it waits for transactions with locks on the marks. It only
	// refuses older tokens. The new token must not pass by it, because those transactions have not ended.
	announce(ctx context.Context, q Conn, resource string, c Claimant) error

	// raise raises the marks to the claimant's if they do not refuse it, and returns the new marks. The result may lack
	// a mark that does not refuse the claimant.
	raise(ctx context.Context, q Conn, resource string, c Claimant) (marks, error)

	// lock is the guard of a writer, and returns the marks that it sees. If they refuse c, c is stale or of another
	// lock. If they have c, the transaction has an exclusive or shared lock on them until it ends. Otherwise the caller
	// must raise them.
	lock(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) (markState, error)

	// settle is called after lock in a transaction that cannot begin again. It raises marks that do not have c, which
	// gives the transaction an exclusive lock, and returns them. It also reports whether the transaction's snapshot may
	// be older than its lock on the marks.
	settle(ctx context.Context, tx Conn, resource string, c Claimant, seen markState, shared bool) (
		m marks, late bool, err error)

	// lockRead is the guard of a reader, in a transaction that cannot begin again. It returns the marks that it sees.
	// If they refuse r, r is stale or of another lock. Otherwise the read mark is r or higher: no transaction of an
	// older writer is under way, and until the transaction ends no newer writer changes what it reads. lockRead raises
	// a lower read mark, which lets in one reader at a time. It also reports whether the transaction's snapshot may be
	// older than that.
	lockRead(ctx context.Context, tx Conn, resource string, r Claimant) (seen markState, late bool, err error)

	// lockPath is the guard of a path, in a transaction that cannot begin again. It returns the marks of each node and
	// raises none. If the marks of the nodes above the end have the claimants, no newer writer is accepted there until
	// the transaction ends; other readers may be. At the end it locks as lock does, not in the shared form. lockPath
	// also reports whether the transaction's snapshot may be older than its locks.
	lockPath(ctx context.Context, tx Conn, nodes Path) (seen []markState, late bool, err error)

	// pin is called after the guard of Do has passed, and pinned with pin's result after the caller's function has
	// succeeded. pinned reports whether the transaction is still the one of the guard. A function can end it with DDL
	// or with COMMIT as SQL, and the driver does not notice. Its later writes are then committed without the fence.
	pin(ctx context.Context, tx Conn, resource string, seen markState) (int64, error)
	pinned(ctx context.Context, tx Conn, pin int64) (bool, error)

	// transient reports whether the server has rolled back the transaction for a reason that a new attempt can avoid.
	transient(err error) bool

	// undone reports whether an error of COMMIT means that nothing was committed.
	undone(err error) bool

	// noTable reports whether the guard's table is missing, and noColumn whether a column is.
	noTable(err error) bool
	noColumn(err error) bool
}

// basis is the part that all stores share.
type basis struct {
	table table
	ddl   string
	plain string // reads the marks without a lock
	modes
}

func (b basis) schema() []string { return []string{b.ddl} }

func (b basis) migrate(ctx context.Context, tx Conn) error {
	_, err := tx.Exec(ctx, b.ddl)
	return err
}

func (b basis) complete(ctx context.Context, q Conn) error {
	_, err := readMarks(ctx, q, b.plain, "")
	return err
}

// checkColumns runs a query that counts the columns of later versions that have another type or default.
func (b basis) checkColumns(ctx context.Context, q Conn, readType, lockType, flaws string, args ...any) error {
	var read, lock int
	err := q.QueryRow(ctx, flaws, args...).Scan(&read, &lock)
	switch {
	case err != nil:
		return fmt.Errorf("read the table's definition: %w", err)
	case read != 0:
		return fmt.Errorf("table %s has a column %s that is not %s NOT NULL DEFAULT 0", b.table.quoted, readColumn, readType)
	case lock != 0:
		return fmt.Errorf("table %s has a column %s that is not %s NOT NULL DEFAULT ''", b.table.quoted, lockColumn, lockType)
	}
	return nil
}

// addColumns runs statements that add one column each. exists recognises the error for a column that another process
// has added.
func addColumns(ctx context.Context, tx Conn, columns []string, exists func(error) bool) error {
	for _, column := range columns {
		if _, err := tx.Exec(ctx, column); err != nil && !exists(err) {
			return err
		}
	}
	return nil
}

// A savepoint ends with its transaction. PostgreSQL uses transaction numbers instead, since its savepoints cost more.
const (
	setGuard     = "SAVEPOINT leasefence_guard"
	releaseGuard = "RELEASE SAVEPOINT leasefence_guard"
)

var stores = map[Dialect]func(table) store{
	PostgreSQL: newPostgreSQL,
	MySQL:      newMySQL,
	SQLite:     newSQLite,
}
