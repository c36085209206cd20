package sqlfence

import (
	"database/sql"
	"fmt"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
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

// drivers are the types of the usual drivers. A driver that is not listed, for example one that wraps another for
// tracing, is accepted.
var drivers = map[string]Dialect{
	"*stdlib.Driver":        PostgreSQL, // github.com/jackc/pgx
	"*pq.Driver":            PostgreSQL, // github.com/lib/pq
	"*mysql.MySQLDriver":    MySQL,      // github.com/go-sql-driver/mysql
	"mysql.MySQLDriver":     MySQL,
	"*sqlite.Driver":        SQLite, // modernc.org/sqlite
	"*sqlite3.SQLiteDriver": SQLite, // github.com/mattn/go-sqlite3
	"*driver.SQLite":        SQLite, // github.com/ncruces/go-sqlite3
}

// fits returns an error if the driver is listed with another dialect.
func (d Dialect) fits(db *sql.DB) error {
	name := fmt.Sprintf("%T", db.Driver())
	if of, known := drivers[name]; known && of != d {
		return fmt.Errorf("sqlfence: dialect is %s, want that of db's driver %s, %s", d, name, of)
	}
	return nil
}
