package sqlfence

import (
	"database/sql"
	"fmt"

	"github.com/leasefence/leasefence/internal/sqlmark"
)

// Dialect is the kind of database.
type Dialect int

// The dialects. MySQL is also that of MariaDB.
const (
	PostgreSQL = Dialect(sqlmark.PostgreSQL)
	MySQL      = Dialect(sqlmark.MySQL)
	SQLite     = Dialect(sqlmark.SQLite)
)

// String returns the name of the constant.
func (d Dialect) String() string { return sqlmark.Dialect(d).String() }

// drivers are the types by which the usual drivers are known. A driver that is not here, for instance one that wraps
// another to trace it, is taken to fit.
var drivers = map[string]Dialect{
	"*stdlib.Driver":        PostgreSQL, // github.com/jackc/pgx
	"*pq.Driver":            PostgreSQL, // github.com/lib/pq
	"*mysql.MySQLDriver":    MySQL,      // github.com/go-sql-driver/mysql
	"mysql.MySQLDriver":     MySQL,
	"*sqlite.Driver":        SQLite, // modernc.org/sqlite
	"*sqlite3.SQLiteDriver": SQLite, // github.com/mattn/go-sqlite3
	"*driver.SQLite":        SQLite, // github.com/ncruces/go-sqlite3
}

// fits returns an error if the driver is known to be of another dialect.
func (d Dialect) fits(db *sql.DB) error {
	name := fmt.Sprintf("%T", db.Driver())
	if of, known := drivers[name]; known && of != d {
		return fmt.Errorf("sqlfence: the dialect is %s and db's driver %s is of %s: want the same", d, name, of)
	}
	return nil
}
