package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// Two functions lock two rows in opposite order. The server ends one of them, and Do runs it again.
func TestDo_deadlockIsRepeated(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		if r.dialect == sqlfence.SQLite {
			return // one writer at a time
		}
		r.must(t, "INSERT INTO data VALUES (2, 0, 0, 0, 0)")
		met := make(chan struct{})
		results := make(chan error, 2)
		runs := make(chan int, 100)
		for i, rows := range [][2]int{{1, 2}, {2, 1}} {
			go func() {
				first := true
				name := fmt.Sprintf("%s %d", resource, i) // with one resource the guard would serialize the two
				results <- r.do(as(t, older), name, func(ctx context.Context, tx conn) error {
					runs <- i
					for _, id := range rows {
						if err := tx.exec(ctx, fmt.Sprintf("UPDATE data SET n = n + 1 WHERE id = %d", id)); err != nil {
							return err
						}
						if first {
							first = false
							select { // each has one row now
							case met <- struct{}{}:
							case <-met:
							}
						}
					}
					return nil
				})
			}()
		}
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		require.Greater(t, len(runs), 2, "there was no deadlock")
		require.EqualValues(t, 2, r.row(t).n)
	})
}

// The connection is gone before COMMIT is sent: nothing is committed, and fn does not run again.
func TestDo_connectionLostBeforeCommit(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		id, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
		switch r.dialect {
		case sqlfence.MySQL:
			id, kill = "SELECT CONNECTION_ID()", "KILL %d"
		case sqlfence.SQLite:
			return // no connection
		}
		runs := 0
		err := r.do(as(t, older), resource, func(ctx context.Context, tx conn) error {
			runs++
			if err := write(ctx, tx, 5, older); err != nil {
				return err
			}
			var pid int64
			if err := tx.scan(ctx, id, &pid); err != nil {
				return err
			}
			return r.exec(ctx, fmt.Sprintf(kill, pid))
		})
		require.ErrorContains(t, err, "not committed")
		require.NotErrorIs(t, err, sqlfence.ErrUnknown)
		require.Equal(t, 1, runs)
		require.Zero(t, r.row(t).n)
		require.NoError(t, r.increment(as(t, older), do), "the next one")
	})
}

// fn does not succeed: nothing is written, Do returns fn's error, and the mark stays raised.
func TestDo_functionFails(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		failure := errors.New("no more money")
		err := r.do(as(t, newer), resource, func(ctx context.Context, tx conn) error {
			require.NoError(t, write(ctx, tx, 0, newer))
			return failure
		})
		require.Equal(t, failure, err)
		require.PanicsWithValue(t, "mine", func() {
			_ = r.do(as(t, newer), resource, func(ctx context.Context, tx conn) error {
				require.NoError(t, write(ctx, tx, 0, newer))
				panic("mine")
			})
		})
		ctx, cancel := context.WithCancelCause(as(t, newer))
		err = r.do(ctx, resource, func(ctx context.Context, tx conn) error {
			require.NoError(t, write(ctx, tx, 0, newer))
			cancel(failure)
			return nil
		})
		require.ErrorIs(t, err, failure)
		require.NotErrorIs(t, err, sqlfence.ErrUnknown, "nothing was sent")
		for _, commits := range []bool{true, false} {
			runs := 0
			err := r.do(as(t, newer), resource, func(ctx context.Context, tx conn) error {
				runs++
				return end(ctx, tx, commits)
			})
			require.ErrorIs(t, err, sqlfence.ErrUnknown)
			require.ErrorIs(t, err, pgxfence.ErrUnknown)
			require.ErrorContains(t, err, "fn has ended the transaction")
			require.Equal(t, 1, runs)
		}
		require.Zero(t, r.row(t).n)
		requireOutcome(t, stale(false), r.increment(as(t, older), do), do)
	})
}

// end ends a transaction as the library does.
func end(ctx context.Context, tx conn, commits bool) error {
	if tx, ok := tx.(sqlConn); ok {
		if commits {
			return tx.q.(*sql.Tx).Commit()
		}
		return tx.q.(*sql.Tx).Rollback()
	}
	if commits {
		return tx.(pgxConn).q.(pgx.Tx).Commit(ctx)
	}
	return tx.(pgxConn).q.(pgx.Tx).Rollback(ctx)
}

// If the server refuses the COMMIT, nothing is written. If it ends the connection during COMMIT, or the context ends, the
// outcome is unknown, and a successor's claim waits for the transaction.
func TestDo_endsInCommit(t *testing.T) {
	at(t, []place{readCommitted, repeatableRead, pgxPlace, pgxSnapshot, pgxSimple}, func(t *testing.T, r *rig) {
		locker, err := r.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer locker.Rollback() //nolint:errcheck // The database is this test's.
		_, err = locker.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(1)")
		require.NoError(t, err)
		const wait = "PERFORM pg_advisory_xact_lock(1)"
		for what, unknown := range map[string]bool{
			"RAISE EXCEPTION 'not today'":                    false,
			"PERFORM pg_terminate_backend(pg_backend_pid())": true,
			wait: true,
		} {
			r.must(t, "CREATE OR REPLACE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "+what+"; RETURN NULL; END $$")
			r.must(t, "DROP TRIGGER IF EXISTS at_commit ON data")
			r.must(t, "CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON data "+
				"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()")
			r.reset(t)
			ctx, cancel := context.WithCancel(as(t, older))
			defer cancel()
			runs, result := 0, make(chan error, 1)
			go func() {
				result <- r.do(ctx, resource, func(ctx context.Context, tx conn) error {
					runs++
					return write(ctx, tx, 0, older)
				})
			}()
			if what == wait {
				r.awaitWaiter(t)
				cancel()
			}
			err := <-result
			require.Error(t, err)
			require.Equal(t, unknown, errors.Is(err, sqlfence.ErrUnknown), "%v", err)
			require.Equal(t, !unknown, strings.Contains(err.Error(), "not committed"), "%v", err)
			require.Equal(t, what == wait, errors.Is(err, context.Canceled), "%v", err)
			require.Equal(t, 1, runs)
			require.NoError(t, r.claim(as(t, newer), resource))
			require.Zero(t, r.row(t).n)
		}
	})
}

// A function ends its transaction by a statement that the driver does not understand, and may begin another. The guard
// has gone, a newer holder comes, and the function writes: Do returns ErrUnknown.
func TestDo_fnEndsTheTransactionByAStatement(t *testing.T) {
	statements := map[sqlfence.Dialect][]string{
		sqlfence.PostgreSQL: {"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "COMMIT; BEGIN", "ROLLBACK; BEGIN"},
		sqlfence.SQLite:     {"COMMIT", "ROLLBACK", "COMMIT; BEGIN"},
		sqlfence.MySQL: {
			"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "BEGIN", "TRUNCATE other", "CREATE OR REPLACE TABLE another (n INT)",
			"ALTER TABLE other COMMENT ''", "LOCK TABLES other WRITE; UNLOCK TABLES", "SET autocommit = 0; SET autocommit = 1",
		},
	}
	at(t, inTurn, func(t *testing.T, r *rig) {
		r.must(t, "CREATE TABLE other (n INT)")
		for _, all := range statements[r.dialect] {
			for _, how := range []form{do, doShared} {
				r.reset(t)
				require.NoError(t, r.claim(as(t, older), resource))
				err := r.run(as(t, older), resource, how, func(ctx context.Context, tx conn) error {
					for one := range strings.SplitSeq(all, "; ") {
						if err := tx.exec(ctx, one); err != nil {
							return err
						}
					}
					if err := r.claim(fence.NewContext(ctx, newer), resource); err != nil {
						return err
					}
					return write(ctx, tx, 0, older)
				})
				require.ErrorIs(t, err, sqlfence.ErrUnknown, "%s: %s", how, all)
				require.ErrorContains(t, err, "the transaction ended while fn ran", "%s: %s", how, all)
			}
		}
	})
}

// Conflicts at the mark do not count as attempts: neither those of one holder's goroutines, nor those of a claim with
// an older holder's transactions. On PostgreSQL at a level with a snapshot, each COMMIT fails the guards that have
// older snapshots.
//
// At Serializable, PostgreSQL may also fail a COMMIT after the guard: a transaction drops its predicate locks shortly
// after the next one has got its row lock, so the two can count as concurrent. That is a serialization failure like any
// other, and an attempt.
func TestDo_meetingAtTheMarkIsNoAttempt(t *testing.T) {
	at(t, slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !p.snapshots() }), func(t *testing.T, r *rig) {
		r.adapter = r.with(t, sqlfence.Options{Attempts: 1, Log: sqlfence.DefaultLog})
		require.NoError(t, r.migrate(t.Context()))
		const hands = 4
		met, results := make(chan struct{}, hands), make(chan error, hands)
		for token := older; token < older+2; token++ {
			require.NoError(t, r.claim(as(t, token), resource))
			ctx := as(t, token)
			for range hands {
				go func() {
					var err error
					for calls := 0; err == nil; calls++ { // until it is refused
						if calls == 10 {
							met <- struct{}{}
						}
						err = r.do(ctx, resource, nothing)
						if err != nil && strings.Contains(err.Error(), "read/write dependencies") {
							err = nil
						}
					}
					results <- err
				}()
			}
			for range hands {
				select {
				case <-met:
				case err := <-results:
					require.NoError(t, err)
				}
			}
			require.NoError(t, r.claim(as(t, token+1), resource))
			for range hands {
				require.ErrorIs(t, <-results, fence.ErrStale)
			}
		}
	})
}
