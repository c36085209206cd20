package sqlfence_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// A pool whose connections have autocommit=0: after it has closed, all that was acknowledged is committed. While it is
// idle, no transaction of the fence is open.
func TestMarks_withoutAutocommit(t *testing.T) {
	plain := newRig(t, mariaDB)
	store := *plain.store
	store.DSN += "?autocommit=0"
	db := store.DB(t)
	db.SetMaxOpenConns(1)
	f, err := newSQL(db, sqlfence.MySQL, sqlfence.Options{Log: sqlfence.DefaultLog})
	require.NoError(t, err)
	require.NoError(t, f.migrate(t.Context()))

	require.NoError(t, f.claim(as(t, older), resource))
	require.NoError(t, f.release(as(t, older), resource, audit.CauseExpired))
	require.NoError(t, f.claim(as(t, newer), resource))
	require.ErrorIs(t, f.claim(as(t, older), resource), fence.ErrStale)
	require.NoError(t, f.logRefusal(as(t, older), &fence.StaleError{Resource: resource, Token: older, Highest: newer}))
	require.NoError(t, f.do(as(t, newer), resource, false, func(ctx context.Context, tx conn) error {
		return write(ctx, tx, 6, newer)
	}))
	require.NoError(t, f.updateRow(as(t, newer), nil, account, "stale = 3"))
	_, _, err = f.history(t.Context(), sqlfence.Query{})
	require.NoError(t, err)
	var id, open int64
	require.NoError(t, f.scan(t.Context(), "SELECT CONNECTION_ID()", &id))
	require.NoError(t, plain.scan(t.Context(),
		fmt.Sprintf("SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = %d", id), &open))
	require.Zero(t, open, "a transaction is left open")
	require.NoError(t, db.Close())

	require.Equal(t, row{n: 7, last: int64(newer), stale: 3}, plain.row(t))
	require.ErrorIs(t, plain.claim(as(t, older), resource), fence.ErrStale)
	audited(t, plain)
	require.Equal(t, []string{
		"accounts 10  0s expired", "accounts 20  0s ", "accounts 10 < 20 ", "accounts 10 < 20 ",
	}, brief(history(t, plain, sqlfence.Query{})))
}
