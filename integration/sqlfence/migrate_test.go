package sqlfence_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// migrating are the places where programs migrate at once. Migrate chooses the level of its transactions itself.
var migrating = append([]place{rollbackJournal}, inTurn...)

// Many migrations at once. On PostgreSQL half of them use the other library.
func TestMigrate_manyAtOnce(t *testing.T) {
	at(t, migrating, func(t *testing.T, r *rig) {
		const processes = 16
		f := r.with(t, sqlfence.Options{Table: "fresh"})
		other, err := newSQL(r.db, r.dialect, sqlfence.Options{Table: "fresh"})
		require.NoError(t, err)
		start, results := make(chan struct{}), make(chan error, processes)
		for i := range processes {
			go func() {
				<-start
				results <- []*adapter{f, other}[i%2].migrate(t.Context())
			}()
		}
		close(start)
		for range processes {
			require.NoError(t, <-results)
		}
		require.NoError(t, f.claim(as(t, older), resource))
		require.NoError(t, f.migrate(t.Context()))
		require.ErrorIs(t, f.claim(as(t, older-1), resource), fence.ErrStale, "a later migration has kept the mark")
	})
}

func TestMigrate_inASchema(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		schema := "main"
		if query := map[sqlfence.Dialect]string{
			sqlfence.PostgreSQL: "SELECT current_schema()", sqlfence.MySQL: "SELECT DATABASE()",
		}[r.dialect]; query != "" {
			require.NoError(t, r.scan(t.Context(), query, &schema))
		}
		f := r.with(t, sqlfence.Options{Table: schema + ".fresh", Log: schema + ".trail"})
		for range 2 {
			require.NoError(t, f.migrate(t.Context()))
			require.NoError(t, f.claim(as(t, newer), resource))
			require.ErrorIs(t, f.claim(as(t, older), resource), fence.ErrStale)
		}
		tenures, refusals, err := f.history(t.Context(), sqlfence.Query{})
		require.NoError(t, err)
		require.Equal(t, []int{1, 2}, []int{len(tenures), len(refusals)})
	})
}

// Another table has a name that differs only in its case. On SQLite both would be one table.
func TestMigrate_besideATableInAnotherCase(t *testing.T) {
	at(t, []place{readCommitted, mariaDB}, func(t *testing.T, r *rig) {
		r.must(t, "CREATE TABLE fresh (resource INT PRIMARY KEY)")
		f := r.with(t, sqlfence.Options{Table: "Fresh"})
		for range 2 { // at first the table is missing
			require.NoError(t, f.migrate(t.Context()))
		}
	})
}

func TestMarks_missingTable(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		r.adapter = r.with(t, sqlfence.Options{Table: "nowhere"})
		r.requireNoTable(t, "nowhere")
	})
}

// requireNoTable requires that the error of every verb names what is missing and the remedy.
func (r *rig) requireNoTable(t *testing.T, missing string) {
	t.Helper()
	for name, v := range verbs(r) {
		err := v.Call(v.Context(t.Context(), newer, "accounts"), resource)
		require.ErrorIs(t, err, sqlfence.ErrNoTable, name)
		require.ErrorIs(t, err, pgxfence.ErrNoTable, name)
		require.ErrorContains(t, err, "call Migrate", name)
		require.ErrorContains(t, err, missing, name)
	}
}

// Migrate refuses a table that would lose marks, or hide a guard or a write, and does not alter it.
func TestMigrate_tableThatCannotServe(t *testing.T) {
	const columns = "(resource text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL)"
	for _, c := range []struct {
		place     place
		flaw, ddl string
	}{
		{readCommitted, "UNLOGGED", "CREATE UNLOGGED TABLE bad " + columns},
		{readCommitted, "TEMPORARY", "CREATE TEMPORARY TABLE bad " + columns},
		{readCommitted, "is a view", "CREATE TABLE good " + columns + "; CREATE VIEW bad AS SELECT * FROM good"},
		{readCommitted, "partitioned", "CREATE TABLE bad " + columns + " PARTITION BY HASH (resource)"},
		{readCommitted, "partition", "CREATE TABLE good " + columns + " PARTITION BY HASH (resource);" +
			"CREATE TABLE bad PARTITION OF good FOR VALUES WITH (MODULUS 2, REMAINDER 0)"},
		{readCommitted, "inherited", "CREATE TABLE bad " + columns + "; CREATE TABLE child () INHERITS (bad)"},
		{readCommitted, "rule", "CREATE TABLE bad " + columns + "; CREATE RULE r AS ON UPDATE TO bad DO INSTEAD NOTHING"},
		{readCommitted, "trigger", "CREATE TABLE bad " + columns + "; CREATE TRIGGER t BEFORE UPDATE ON bad FOR EACH ROW " +
			"EXECUTE FUNCTION suppress_redundant_updates_trigger()"},
		{readCommitted, "resource that", "CREATE TABLE bad (resource char(300) PRIMARY KEY, token bigint NOT NULL)"},
		{readCommitted, "bigint", "CREATE TABLE bad (resource text PRIMARY KEY, token double precision NOT NULL)"},
		{readCommitted, "bigint", "CREATE TABLE bad (resource text PRIMARY KEY, token bigint)"},
		{readCommitted, "primary key", "CREATE TABLE bad (resource text, token bigint NOT NULL)"},
		{readCommitted, "primary key", "CREATE TABLE bad (resource text, token bigint NOT NULL, PRIMARY KEY (resource, token))"},
		{readCommitted, "primary key", "CREATE TABLE bad (resource text PRIMARY KEY DEFERRABLE, token bigint NOT NULL)"},
		{pgxPlace, "bigint", "CREATE TABLE bad (resource text PRIMARY KEY)"},
		{mariaDB, "MyISAM", "CREATE TABLE bad (resource VARBINARY(255) PRIMARY KEY, token BIGINT) ENGINE = MyISAM"},
		{mariaDB, "column resource", "CREATE TABLE bad (resource VARCHAR(255) PRIMARY KEY, token BIGINT)"},
		{mariaDB, "column resource", "CREATE TABLE bad (resource VARBINARY(255), token BIGINT)"},
		{mariaDB, "column resource", "CREATE TABLE bad (resource VARBINARY(255), token BIGINT, PRIMARY KEY (resource, token))"},
		{mariaDB, "columns token", "CREATE TABLE bad (resource VARBINARY(255) PRIMARY KEY, token BIGINT)"},
		{sqlite, "columns resource", "CREATE TABLE bad (resource TEXT PRIMARY KEY)"},
		{sqlite, "primary key", "CREATE TABLE bad (resource TEXT, token INTEGER)"},
		{sqlite, "primary key", "CREATE TABLE bad (resource TEXT, token INTEGER, PRIMARY KEY (resource, token))"},
	} {
		t.Run(c.place.String()+", "+c.ddl, func(t *testing.T) {
			r := newRig(t, c.place)
			r.db.SetMaxOpenConns(1) // the session of the temporary table
			for ddl := range strings.SplitSeq(c.ddl, ";") {
				r.must(t, ddl)
			}
			err := r.with(t, sqlfence.Options{Table: "bad"}).migrate(t.Context())
			require.ErrorContains(t, err, "fence: migrate ")
			require.ErrorContains(t, err, c.flaw)
			require.Error(t, r.exec(t.Context(), "SELECT read_token FROM bad"), "it was altered")
		})
	}
}

// Migrate refuses a later column of another type, or without the default that claims need.
func TestMigrate_columnThatCannotServe(t *testing.T) {
	for _, p := range each {
		columns := map[sqlfence.Dialect]string{
			sqlfence.PostgreSQL: "resource text PRIMARY KEY, token bigint NOT NULL",
			sqlfence.MySQL:      "resource VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL, writes BIGINT NOT NULL DEFAULT 0",
			sqlfence.SQLite:     "resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL",
		}[p.dialect]
		text := "TEXT"
		if p.dialect == sqlfence.MySQL {
			text = "VARBINARY(2304)"
		}
		for _, column := range []string{
			"read_token INT NOT NULL",
			"read_token BIGINT",
			"read_token BIGINT NOT NULL",
			"read_token BIGINT DEFAULT 0",
			"read_token VARCHAR(20) NOT NULL DEFAULT '0'",
			"lock_name BIGINT NOT NULL DEFAULT 0",
			"lock_name " + text,
			"lock_name " + text + " DEFAULT ''",
			"lock_name " + text + " NOT NULL DEFAULT 'accounts'",
		} {
			t.Run(p.String()+", "+column, func(t *testing.T) {
				r := newRig(t, p)
				r.must(t, "CREATE TABLE bad ("+columns+", "+column+")")
				err := r.with(t, sqlfence.Options{Table: "bad"}).migrate(t.Context())
				name, _, _ := strings.Cut(column, " ")
				require.ErrorContains(t, err, "has a column "+name+" that is not ")
			})
		}
		t.Run(p.String()+", of a migration tool", func(t *testing.T) {
			r := newRig(t, p)
			r.must(t, "CREATE TABLE good ("+columns+")")
			r.must(t, "ALTER TABLE good ADD COLUMN read_token BIGINT NOT NULL DEFAULT 0")
			r.must(t, "ALTER TABLE good ADD COLUMN lock_name "+text+" NOT NULL DEFAULT ''")
			require.NoError(t, r.with(t, sqlfence.Options{Table: "good"}).migrate(t.Context()))
		})
	}
}

// The driver shows that the database is of another kind, before anything is sent.
func TestMarks_dialectOfAnotherDriver(t *testing.T) {
	for _, p := range each {
		for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.MySQL, sqlfence.SQLite} {
			if dialect == p.dialect {
				continue
			}
			closed := newStore(t, p.dialect).open(t)
			require.NoError(t, closed.Close()) // so that anything that is sent fails with another error
			f, err := newSQL(closed, dialect, sqlfence.Options{})
			require.NoError(t, err)
			require.ErrorContains(t, f.claim(as(t, older), resource), "driver")
			require.ErrorContains(t, f.do(as(t, older), resource, nothing), "driver")
			require.ErrorContains(t, f.migrate(t.Context()), "driver")
		}
	}
}

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
			require.NoError(t, r.increment(of(t, "accounts", older), do))
			require.NoError(t, r.earlierWrite(as(t, older), older))
			require.NoError(t, r.claimRead(readerOf(t, "accounts", newer), resource))
			requireOutcome(t, stale(true), r.increment(of(t, "accounts", older), do), do)
			require.NoError(t, r.earlierWrite(as(t, newer+1), newer+1))
			require.Equal(t, fencetest.Marks{Write: newer + 1, Read: newer, Lock: "accounts"}, r.marks(t, resource))
			require.ErrorIs(t, r.claimRead(readerOf(t, "accounts", newer), resource), fence.ErrStale, "a mark of the earlier version")
			require.NoError(t, r.increment(of(t, "accounts", newer+1), do))
			require.Equal(t, row{n: 5, last: int64(newer + 1)}, r.row(t))
		}
	})
}

// Many processes migrate a table at once while programs of the earlier version write. No write is lost.
func TestMigrate_tableOfAnEarlierVersionInUse(t *testing.T) {
	at(t, migrating, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		r.toEarlier(t, "lock_name")
		r.toEarlier(t, "read_token")
		ctx := t.Context()
		const processes, writers, writes = 4, 2, 20 // the writes of each after the migrations
		var migrated atomic.Bool
		var written atomic.Int64
		stopped, migrations := make(chan error, writers), make(chan error, processes)
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
				}
				stopped <- err
			}()
		}
		require.Eventually(t, func() bool { return written.Load() >= writers }, patience, time.Millisecond)
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
		requireOutcome(t, stale(true), r.claim(as(t, older), resource), do)
	})
}

// Migrate without the right to alter the table returns an error that names the missing columns.
func TestMigrate_mayNotAlter(t *testing.T) {
	r := newRig(t, readCommitted)
	r.toEarlier(t, "read_token")
	var schema string
	require.NoError(t, r.scan(t.Context(), "SELECT current_schema()", &schema))
	r.must(t, "CREATE ROLE guest")
	r.must(t, "GRANT USAGE ON SCHEMA "+schema+" TO guest")
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
