package sqlmark

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKind_byDialect(t *testing.T) {
	mysql, sqlite := newMySQL(table{}), newSQLite(table{})
	for _, c := range []struct {
		store store
		err   error
		want  kind
	}{
		{mysql, errors.New("Error 1213 (40001): Deadlock found when trying to get lock"), transient},
		{mysql, errors.New("Error 1213: Deadlock found when trying to get lock"), transient}, // before SQLSTATE was added
		{mysql, fmt.Errorf("pay: %w", errors.New("Error 1020 (HY000): Record has changed")), transient},
		{mysql, errors.Join(errors.New("x"), errors.New("Error 1213 (40001): d")), transient},
		{mysql, errors.New("Error 3101 (40000): Plugin instructed the server to rollback the current transaction"), transient},
		{mysql, errors.New("Error 1205 (HY000): Lock wait timeout exceeded"), other},
		{mysql, errors.New("Error 1146 (42S02): Table 'Error 1213: x' doesn't exist"), noTable},
		{mysql, errors.New("Error 12131: none"), other},
		{mysql, fmt.Errorf("Error in pay: %w", errors.New("Error 1213 (40001): d")), transient},
		{mysql, errors.New("Error 1213"), other},
		{mysql, errors.New("it says Error 1213 (40001): d"), other},
		{sqlite, errors.New("database is locked (5) (SQLITE_BUSY)"), transient},
		{sqlite, errors.New("database is locked (517)"), transient}, // SQLITE_BUSY_SNAPSHOT
		{sqlite, errors.New("database table is locked: data (262)"), transient},
		{sqlite, errors.New("constraint failed: FOREIGN KEY constraint failed (787)"), undone},
		{sqlite, errors.New("disk I/O error (10)"), other}, // it leaves COMMIT open
		{sqlite, fmt.Errorf("pay: %w", errors.New("database is locked")), transient},
		{sqlite, errors.New("sqlite3: database is locked"), transient},                            // ncruces
		{sqlite, errors.New("sqlite3: constraint failed: FOREIGN KEY constraint failed"), undone}, // ncruces
		{sqlite, errors.New("FOREIGN KEY constraint failed"), undone},                             // mattn
	} {
		require.Equal(t, c.want, c.store.kind(c.err), "%v", c.err)
	}
}
