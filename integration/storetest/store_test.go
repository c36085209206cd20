package storetest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

func TestStore_isATestsOwn(t *testing.T) {
	for _, kind := range []storetest.Kind{storetest.PostgreSQL, storetest.MariaDB, storetest.SQLite} {
		t.Run(string(kind), func(t *testing.T) {
			first, second := storetest.New(t, kind).DB(t), storetest.New(t, kind).DB(t)
			for _, db := range []interface{ Ping() error }{first, second} {
				require.NoError(t, db.Ping())
			}
			_, err := first.ExecContext(t.Context(), "CREATE TABLE here (n INT)")
			require.NoError(t, err)
			_, err = second.ExecContext(t.Context(), "SELECT n FROM here")
			require.Error(t, err, "it is there in another test's database")
		})
	}
}
