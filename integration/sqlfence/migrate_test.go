package sqlfence_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// Many that start at once, each with connections of its own as a process has.
func TestMigrate_manyAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		const processes = 16
		f, err := sqlfence.New(r.dialect, sqlfence.Options{Table: "fresh"})
		require.NoError(t, err)
		start := make(chan struct{})
		results := make([]error, processes)
		var running sync.WaitGroup
		for i := range processes {
			running.Go(func() {
				<-start
				results[i] = f.Migrate(t.Context(), r.db)
			})
		}
		close(start)
		running.Wait()
		for _, err := range results {
			require.NoError(t, err)
		}
		require.NoError(t, f.Claim(as(t, older), r.db, resource))
		require.NoError(t, f.Migrate(t.Context(), r.db))
		require.Error(t, f.Claim(as(t, older-1), r.db, resource), "a later migration has kept the mark")
	})
}

func TestFence_missingTable(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f, err := sqlfence.New(r.dialect, sqlfence.Options{Table: "nowhere", Isolation: r.level})
		require.NoError(t, err)
		for _, err := range []error{
			f.Claim(as(t, older), r.db, resource),
			f.Do(as(t, older), r.db, resource, nothing),
			f.DoShared(as(t, older), r.db, resource, nothing),
		} {
			require.ErrorIs(t, err, sqlfence.ErrNoTable)
			require.ErrorContains(t, err, "call Migrate")
			require.ErrorContains(t, err, "nowhere")
		}
	})
}

func TestMigrate_tableThatCannotServe(t *testing.T) {
	for _, c := range []struct {
		place place
		ddl   string
	}{
		{places[0], "CREATE TABLE bad (resource text PRIMARY KEY)"},
		{places[4], "CREATE TABLE bad (resource VARBINARY(255) PRIMARY KEY, token BIGINT) ENGINE = MyISAM"},
		{places[4], "CREATE TABLE bad (resource VARCHAR(255) PRIMARY KEY, token BIGINT)"},
		{places[4], "CREATE TABLE bad (resource VARBINARY(255), token BIGINT)"},
		{places[7], "CREATE TABLE bad (resource TEXT PRIMARY KEY)"},
	} {
		t.Run(c.place.String(), func(t *testing.T) {
			r := newRig(t, c.place)
			r.exec(t, c.ddl)
			f, err := sqlfence.New(r.dialect, sqlfence.Options{Table: "bad"})
			require.NoError(t, err)
			require.ErrorContains(t, f.Migrate(t.Context(), r.db), "migrate")
		})
	}
}

// Names that a collation would take for one another, or a placeholder would spoil.
func TestClaim_namesAreExact(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for i, name := range []string{"a", "A", "a ", "ä", "a'", `a"\`, "a?$1"} {
			require.NoError(t, r.f.Claim(as(t, older-1), r.db, name), "%d: an older token at another resource", i)
			require.NoError(t, r.f.Claim(as(t, newer), r.db, name))
		}
	})
}

// A database of another kind is told by its driver before anything is sent.
func TestFence_dialectOfAnotherDriver(t *testing.T) {
	for _, p := range places {
		r := newRig(t, p)
		for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.MySQL, sqlfence.SQLite} {
			if dialect == r.dialect {
				continue
			}
			f, err := sqlfence.New(dialect, sqlfence.Options{})
			require.NoError(t, err)
			closed := storetest.New(t, p.kind).DB(t)
			require.NoError(t, closed.Close()) // whatever is sent fails otherwise
			require.ErrorContains(t, f.Claim(as(t, older), closed, resource), "driver")
			require.ErrorContains(t, f.Do(as(t, older), closed, resource, nothing), "driver")
			require.ErrorContains(t, f.Migrate(t.Context(), closed), "driver")
		}
	}
}
