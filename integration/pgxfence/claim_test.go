package pgxfence_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// Many that start at once, each with connections of its own as a process has, half of them through sqlfence.
func TestMigrate_manyAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		const processes = 16
		f, err := pgxfence.New(pgxfence.Options{Table: "fresh"})
		require.NoError(t, err)
		other, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{Table: "fresh"})
		require.NoError(t, err)
		db := r.store.DB(t)
		start := make(chan struct{})
		results := make([]error, processes)
		var running sync.WaitGroup
		for i := range processes {
			running.Go(func() {
				<-start
				if i%2 == 0 {
					results[i] = f.Migrate(t.Context(), r.pool)
				} else {
					results[i] = other.Migrate(t.Context(), db)
				}
			})
		}
		close(start)
		running.Wait()
		for _, err := range results {
			require.NoError(t, err)
		}
		require.NoError(t, f.Claim(as(t, older), r.pool, resource))
		require.NoError(t, f.Migrate(t.Context(), r.pool))
		require.ErrorIs(t, f.Claim(as(t, older-1), r.pool, resource), fence.ErrStale, "a later migration has kept the mark")
	})
}

func TestMigrate_tableThatCannotServe(t *testing.T) {
	r := newRig(t, places[1])
	r.exec(t, "CREATE TABLE bad (resource text PRIMARY KEY)")
	f, err := pgxfence.New(pgxfence.Options{Table: "bad"})
	require.NoError(t, err)
	require.ErrorContains(t, f.Migrate(t.Context(), r.pool), `pgxfence: migrate "bad"`)
}

func TestFence_missingTable(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f, err := pgxfence.New(pgxfence.Options{Table: "nowhere", Isolation: r.level})
		require.NoError(t, err)
		for _, err := range []error{
			f.Claim(as(t, older), r.pool, resource),
			f.Do(as(t, older), r.pool, resource, nothing),
			f.DoShared(as(t, older), r.pool, resource, nothing),
			r.transaction(as(t, older), func(tx pgx.Tx) error { return f.Check(as(t, older), tx, resource) }),
		} {
			require.ErrorIs(t, err, pgxfence.ErrNoTable)
			require.ErrorIs(t, err, sqlfence.ErrNoTable)
			require.ErrorContains(t, err, "pgxfence: ")
			require.ErrorContains(t, err, "call Migrate")
			require.ErrorContains(t, err, "nowhere")
		}
	})
}

// Names that a collation would take for one another, or a placeholder would spoil.
func TestClaim_namesAreExact(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for i, name := range []string{"a", "A", "a ", "ä", "a'", `a"\`, "a?$1"} {
			require.NoError(t, r.f.Claim(as(t, older-1), r.pool, name), "%d: an older token at another resource", i)
			require.NoError(t, r.f.Claim(as(t, newer), r.pool, name))
		}
	})
}

// What one package has accepted is a mark for the other.
func TestFence_sharesItsTableWithSqlfence(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		db := r.store.DB(t)
		other, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{})
		require.NoError(t, err)
		require.NoError(t, other.Migrate(t.Context(), db))
		nothingSQL := func(context.Context, *sql.Tx) error { return nil }

		require.NoError(t, other.Claim(as(t, older), db, resource))
		require.ErrorIs(t, r.f.Do(as(t, older-1), r.pool, resource, nothing), fence.ErrStale)
		require.NoError(t, r.f.Do(as(t, older), r.pool, resource, nothing))
		require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
		require.ErrorIs(t, other.Do(as(t, older), db, resource, nothingSQL), fence.ErrStale)
		require.ErrorIs(t, other.DoShared(as(t, older), db, resource, nothingSQL), fence.ErrStale)
		require.NoError(t, other.Do(as(t, newer), db, resource, nothingSQL))

		// A claim of the one waits for a transaction of the other.
		claimed := make(chan error, 1)
		require.NoError(t, r.increment(as(t, newer), doShared, func(at step) {
			if at == hasWritten {
				go func() { claimed <- other.Claim(as(t, newer+1), db, resource) }()
				r.awaitWaiter(t)
			}
		}))
		require.NoError(t, <-claimed)
		require.ErrorIs(t, r.increment(as(t, newer), doShared, nowhere), fence.ErrStale)
	})
}

func TestUpdateRow(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		account := pgxfence.Row{Table: "data", Key: "id", ID: 1}
		require.NoError(t, r.f.UpdateRow(as(t, newer), r.pool, account, "n = $1", 5))
		err := r.f.UpdateRow(as(t, older), r.pool, account, "n = $1", 6)
		stale, ok := err.(*fence.StaleError) //nolint:errorlint // Nothing is to be wrapped around it.
		require.True(t, ok, "%v", err)
		require.Equal(t, fence.StaleError{Resource: `data/"1"`, Token: older, Highest: newer}, *stale)
		require.EqualValues(t, 5, r.row(t).n)
		missing := account
		missing.ID = 2
		require.ErrorIs(t, r.f.UpdateRow(as(t, newer), r.pool, missing, "n = $1", 6), pgxfence.ErrNoRow)

		// The newest holder has written and not committed when another comes: that waits, and is refused.
		answer := make(chan error, 1)
		require.NoError(t, r.transaction(as(t, newer), func(tx pgx.Tx) error {
			if err := r.f.UpdateRow(as(t, newer+1), tx, account, "n = n + 1"); err != nil {
				return err
			}
			go func() { answer <- r.f.UpdateRow(as(t, newer), r.pool, account, "n = n + 100") }()
			r.awaitWaiter(t)
			return nil
		}))
		require.ErrorIs(t, <-answer, fence.ErrStale)
		require.EqualValues(t, 6, r.row(t).n)
	})
}

// Two transactions of one holder are inside their guards at once, a newer claim waits for both, and none gets ahead of
// the claim.
func TestFence_sharedFormsRunSideBySide(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range []form{doShared, checkShared} {
			t.Run(string(how), func(t *testing.T) { r.sideBySide(t, how) })
		}
	})
}

func (r *rig) sideBySide(t *testing.T, how form) {
	t.Helper()
	r.reset(t)
	// Or else the two would claim, and a claim waits for those that are inside.
	require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
	entered := make(chan struct{}, 2)
	release := []chan struct{}{make(chan struct{}), make(chan struct{})}
	results := make(chan error, 2)
	for _, released := range release {
		go func() {
			results <- r.run(as(t, older), how, nowhere, func(context.Context, pgx.Tx) error {
				entered <- struct{}{}
				<-released
				return nil
			})
		}()
	}
	for range release { // would not end if one waited for the other
		select {
		case <-entered:
		case <-as(t, older).Done():
			close(release[0])
			close(release[1])
			t.Fatal("one waits for the other")
		}
	}
	require.NoError(t, r.f.Claim(as(t, older), r.pool, resource), "their own claim does not wait for them")
	claimed := make(chan error, 1)
	go func() { claimed <- r.f.Claim(as(t, newer), r.pool, resource) }()
	r.awaitWaiter(t)
	require.ErrorIs(t, r.run(as(t, older), how, nowhere, nothing), fence.ErrStale, "ahead of the claim")
	close(release[0])
	require.NoError(t, <-results)
	r.awaitWaiter(t)
	require.Empty(t, claimed, "the claim has not waited for the second")
	close(release[1])
	require.NoError(t, errors.Join(<-results, <-claimed))
}

// The plain forms keep even transactions of one holder apart, and each reads what those before it have written.
func TestFence_plainFormsRunOneAfterTheOther(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, how := range []form{do, check} {
			r.reset(t)
			require.NoError(t, r.f.Claim(as(t, older), r.pool, resource))
			second := make(chan error, 1)
			reads := make(chan int64, 100)
			require.NoError(t, r.increment(as(t, older), how, func(at step) {
				if at != hasWritten {
					return
				}
				go func() {
					second <- r.run(as(t, older), how, nowhere, func(ctx context.Context, tx pgx.Tx) error {
						n, err := read(ctx, tx)
						reads <- n
						return err
					})
				}()
				r.awaitWaiter(t)
				require.Empty(t, second)
			}))
			err := <-second
			close(reads)
			require.True(t, err == nil || how == check && transient(err), "%v", err)
			for n := range reads {
				require.EqualValues(t, 1, n, "it has read past its predecessor's write")
			}
		}
	})
}
