package sqlfence_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// earlierWrite raises the mark and writes under its lock, as a program of the version before there were readers does.
func (r *rig) earlierWrite(ctx context.Context, token fence.Token) error {
	return r.transaction(ctx, func(tx conn) error {
		if err := tx.exec(ctx, fmt.Sprintf("UPDATE leasefence_marks SET token = %d WHERE resource = 'accounts'", token)); err != nil {
			return err
		}
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		return write(ctx, tx, n, token)
	})
}

// toEarlier removes a column that tables of earlier versions lack.
func (r *rig) toEarlier(t *testing.T, column string) {
	t.Helper()
	r.must(t, "ALTER TABLE leasefence_marks DROP COLUMN "+column)
}

// Tables of the version before readers, and of the one before resources followed locks. Before Migrate has added the
// columns, nothing is accepted, and the error has the remedy. Then the marks follow no lock yet.
func TestMarks_tableOfAnEarlierVersion(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		for _, missing := range []string{"read_token", "lock_name"} {
			r.reset(t)
			require.NoError(t, r.claim(as(t, older), resource))
			r.toEarlier(t, "lock_name")
			if missing == "read_token" {
				r.toEarlier(t, missing)
			}
			require.NoError(t, r.earlierWrite(as(t, older), older))
			r.requireNoTable(t, missing)
			require.Equal(t, row{n: 1, last: int64(older)}, r.row(t))
			require.NoError(t, r.migrate(t.Context()))
			require.ErrorIs(t, r.claim(as(t, older-1), resource), fence.ErrStale, "the mark was lost")
			require.Equal(t, fencetest.Marks{Write: older}, r.marks(t, resource))
			require.NoError(t, r.claim(of(t, "accounts", older), resource))

			// Both versions write, and a reader comes. The earlier version compares only tokens, and keeps the name.
			require.NoError(t, r.increment(of(t, "accounts", older), do, nowhere))
			require.NoError(t, r.earlierWrite(as(t, older), older))
			require.NoError(t, r.claimRead(readerOf(t, "accounts", newer), resource))
			requireRefused(t, r.increment(of(t, "accounts", older), do, nowhere), do, true)
			require.NoError(t, r.earlierWrite(as(t, newer+1), newer+1))
			require.Equal(t, fencetest.Marks{Write: newer + 1, Read: newer, Lock: "accounts"}, r.marks(t, resource))
			require.ErrorIs(t, r.claimRead(readerOf(t, "accounts", newer), resource), fence.ErrStale, "a mark of the earlier version")
			require.NoError(t, r.increment(of(t, "accounts", newer+1), do, nowhere))
			require.Equal(t, row{n: 5, last: int64(newer + 1)}, r.row(t))
		}
	})
}

// Many processes migrate a table at once while programs of the earlier version write. No write is lost.
func TestMigrate_tableOfAnEarlierVersionInUse(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		r.toEarlier(t, "lock_name")
		r.toEarlier(t, "read_token")
		ctx := t.Context()
		const processes, writers, writes = 4, 2, 20 // the writes of each after the migrations
		var migrated atomic.Bool
		var written atomic.Int64
		begun, stopped, migrations := make(chan struct{}, writers), make(chan error, writers), make(chan error, processes)
		for range writers {
			go func() {
				var err error
				for after := 0; after < writes && err == nil; {
					if migrated.Load() {
						after++
					}
					if err = r.earlierWrite(ctx, older); err == nil {
						written.Add(1)
					} else if transient(err) {
						err = nil
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
				stopped <- err
			}()
		}
		for range writers {
			<-begun
		}
		for range processes {
			go func() { migrations <- r.migrate(ctx) }()
		}
		for range processes {
			require.NoError(t, <-migrations)
		}
		migrated.Store(true)
		for range writers {
			require.NoError(t, <-stopped)
		}
		require.Equal(t, written.Load(), r.row(t).n)
		require.NoError(t, r.migrate(ctx))
		require.NoError(t, r.claimRead(asReader(t, newer), resource))
		requireRefused(t, r.claim(as(t, older), resource), do, true)
	})
}

// Migrate without the right to alter the table returns an error that names the missing columns.
func TestMigrate_mayNotAlter(t *testing.T) {
	r := newRig(t, readCommitted)
	r.toEarlier(t, "read_token")
	r.must(t, "CREATE ROLE guest")
	r.must(t, "GRANT ALL ON leasefence_marks TO guest")
	r.db.SetMaxOpenConns(1)
	r.must(t, "SET ROLE guest")
	err := r.migrate(t.Context())
	require.ErrorContains(t, err, "must be owner")
	require.ErrorContains(t, err, "add the columns read_token and lock_name")
	r.must(t, "RESET ROLE")
	require.NoError(t, r.migrate(t.Context()))
	r.must(t, "SET ROLE guest")
	require.NoError(t, r.migrate(t.Context()), "there is nothing to add")
	r.must(t, "RESET ROLE")
	r.must(t, "REVOKE ALL ON leasefence_marks FROM guest")
	r.must(t, "SET ROLE guest")
	require.ErrorContains(t, r.migrate(t.Context()), "permission denied", "the definition can be read, and the marks cannot")
}
