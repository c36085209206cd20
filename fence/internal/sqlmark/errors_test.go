package sqlmark

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

type codeError int // as modernc.org/sqlite's

func (e codeError) Error() string { return "something" }
func (e codeError) Code() int     { return int(e) }

func TestTransient_byDialect(t *testing.T) {
	mysql, sqlite := newMySQL(table{}), newSQLite(table{})
	for _, c := range []struct {
		store store
		err   error
		want  bool
	}{
		{mysql, errors.New("Error 1213 (40001): Deadlock found when trying to get lock"), true},
		{mysql, errors.New("Error 1213: Deadlock found when trying to get lock"), true}, // before SQLSTATE was added
		{mysql, fmt.Errorf("pay: %w", errors.New("Error 1020 (HY000): Record has changed")), true},
		{mysql, errors.Join(errors.New("x"), errors.New("Error 1213 (40001): d")), true},
		{mysql, errors.New("Error 3101 (40000): Plugin instructed the server to rollback the current transaction"), true},
		{mysql, fmt.Errorf("claim: %w", errUndone), true},
		{mysql, errors.New("Error 1205 (HY000): Lock wait timeout exceeded"), false},
		{mysql, errors.New("Error 1146 (42S02): Table 'Error 1213: x' doesn't exist"), false},
		{mysql, errors.New("Error 12131: none"), false},
		{mysql, errors.New("Error 1213"), false},
		{mysql, errors.New("it says Error 1213 (40001): d"), false},
		{sqlite, codeError(5), true},
		{sqlite, codeError(5 | 2<<8), true}, // SQLITE_BUSY_SNAPSHOT
		{sqlite, codeError(6), true},
		{sqlite, codeError(19), false},
		{sqlite, fmt.Errorf("pay: %w", errors.New("database is locked")), true},
		{sqlite, errors.New("disk I/O error"), false},
	} {
		require.Equal(t, c.want, c.store.transient(c.err), "%v", c.err)
	}
	require.True(t, mysql.noTable(errors.New("Error 1146 (42S02): Table 'a.b' doesn't exist")))
	require.True(t, sqlite.undone(codeError(19|3<<8)), "a deferred constraint")
	require.False(t, sqlite.undone(codeError(10)), "an I/O error leaves it open")
}

func TestFault_matchesAcrossPackages(t *testing.T) {
	for _, fault := range []Fault{Unknown, Unclaimed, NoTable, NoRow} {
		err := fmt.Errorf("pay: %w", fault.Of("a"))
		require.ErrorIs(t, err, fault.Of("b"))
		require.ErrorContains(t, err, "a: "+faults[fault])
		require.NotErrorIs(t, err, (fault%4 + 1).Of("a"), "another fault")
	}
}
