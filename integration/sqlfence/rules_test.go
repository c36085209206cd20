package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestMarks_paths(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		fencetest.Paths(t, 8, 11, func() fencetest.Tree {
			r.reset(t)
			return fencetest.Tree{
				Claim: r.claimPath,
				Check: func(ctx context.Context, path string) error {
					_, err := r.incrementOn(ctx, path, checkPath)
					return err
				},
				Marks: func() any {
					var all string
					query := r.list("resource", "CONCAT(token, '/', read_token)", "leasefence_marks")
					require.NoError(t, r.scan(t.Context(), query, &all))
					return all
				},
			}
		})
	})
}

// CheckPath raises no mark, so it refuses a path that was not claimed, or of which only the end was.
func TestMarks_CheckPath_unclaimed(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		_, err := r.incrementOn(as(t, older), "a/b", checkPath)
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed)
		require.NoError(t, r.claim(as(t, older), "a/b"))
		_, err = r.incrementOn(as(t, older), "a/b", checkPath)
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed, "the node above")
		require.NoError(t, r.claimPath(as(t, older), "a/b"))
		_, err = r.incrementOn(as(t, newer), "a/b", checkPath)
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed, "a newer token")
		_, err = r.incrementOn(as(t, older), "a/b", checkPath)
		require.NoError(t, err)
		require.ErrorContains(t, r.claimPath(as(t, older), "/a"), "does not begin with a slash")
		require.ErrorContains(t, r.claimPath(as(t, older), ""), "want 1 to 255 bytes")
		require.ErrorIs(t, r.claimPath(asReader(t, older), "a"), fence.ErrInvalidToken)
	})
}

// Each node above follows its own lock: its name is that of the token's lock with one part less for each level.
func TestMarks_pathsFollowLocks(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		lock := func(node string) (name string) {
			require.NoError(t, r.scan(t.Context(), "SELECT lock_name FROM leasefence_marks WHERE resource = '"+node+"'", &name))
			return name
		}
		tree := of(t, "app/a/~b/~c", older)
		require.NoError(t, r.claimPath(tree, "a/b/c"))
		_, err := r.incrementOn(tree, "a/b/c", checkPath)
		require.NoError(t, err, "what was claimed")
		require.Equal(t, []string{"app/a", "app/a/~b", "app/a/~b/~c"}, []string{lock("a"), lock("a/b"), lock("a/b/c")})

		for path, name := range map[string]string{"a": "other/a", "a/b/c": "other/a/~b/~c", "a/b": "app/a/~c"} {
			for _, err := range []error{
				r.claimPath(of(t, name, newer), path),
				r.transaction(t.Context(), func(tx conn) error { return r.guard[checkPath](of(t, name, newer), tx, path) }),
			} {
				other, ok := errors.AsType[*fence.OtherLockError](err)
				require.True(t, ok, "%v", err)
				require.False(t, other.Read, "the token is a writer's")
			}
		}
		require.ErrorIs(t, r.claimPath(as(t, newer), "a/b/c"), fence.ErrOtherLock, "without a name")
		require.ErrorIs(t, r.claimPath(of(t, "app/a/~b", newer), "a/b/d"), fence.ErrOtherLock, "the lock of the node above")

		require.NoError(t, r.claim(of(t, "app/plain", older), "d/e"))
		require.ErrorIs(t, r.claimPath(of(t, "other/d/~e", newer), "d/e"), fence.ErrOtherLock)
		require.NoError(t, r.claimPath(of(t, "app/d", older), "d"), "the refused token has not raised the mark above")

		plain := of(t, "app/plain", newer)
		require.NoError(t, r.claimPath(plain, "a/b/d"), "its name does not tell the locks of the nodes above")
		_, err = r.incrementOn(plain, "a/b/d", checkPath)
		require.NoError(t, err)
		require.Equal(t, []string{"app/a", "app/a/~b", "app/plain"}, []string{lock("a"), lock("a/b"), lock("a/b/d")})
		require.NoError(t, r.claimPath(of(t, "app/a", newer+1), "a"))
		_, err = r.incrementOn(plain, "a/b/d", checkPath)
		require.ErrorIs(t, err, fence.ErrStale)
	})
}

// verbs returns the verbs that know the lock of their token. A check that returns ErrUnclaimed claims and begins again.
func verbs(r *rig) map[string]fencetest.Verb {
	all := fencetest.VerbsOf(r.claim, nil, r.move, r.claimRead, nil)
	for _, how := range append(r.forms(), checkRead) {
		claim := r.claim
		if how == checkRead {
			claim = r.claimRead
		}
		all[string(how)] = fencetest.Verb{Reads: how == checkRead, Call: func(ctx context.Context, resource string) error {
			return persist(ctx, resource, claim, func() error { return r.run(ctx, resource, how, nothing) })
		}}
	}
	return all
}

// marks returns the marks of a resource.
func (r *rig) marks(t *testing.T, resource string) (m fencetest.Marks) {
	t.Helper()
	var write, read int64
	rows := "SELECT COALESCE(MAX(token), 0), COALESCE(MAX(read_token), 0), COALESCE(MAX(lock_name), '') FROM leasefence_marks "
	require.NoError(t, r.scan(t.Context(), rows+"WHERE resource = '"+resource+"'", &write, &read, &m.Lock))
	m.Write, m.Read = fence.Token(write), fence.Token(read)
	return m
}

// The rule is the same Go code everywhere; here each dialect shows that it stores and reads the marks. pgx sends the same
// statements, and may send names in another way.
func TestMarks_rules(t *testing.T) {
	at(t, append(each, pgxPlace, pgxSimple), func(t *testing.T, r *rig) {
		told, lax := make(fencetest.Told, 9), &rig{place: r.place, db: r.db, pool: r.pool}
		r.adapter = r.with(t, sqlfence.Options{Hooks: told.Hooks()})
		lax.adapter = r.with(t, sqlfence.Options{Hooks: told.Hooks(), AllowUnnamed: true})
		rules := fencetest.Rules{Verbs: verbs(r), Lax: verbs(lax), Told: told, Marks: r.marks}
		if !r.pgx {
			rules.Decide(t)
		}
		rules.Names(t, 255)
	})
}

func TestMarks_grants(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		var checks []string
		for _, how := range r.forms() {
			checks = append(checks, string(how))
		}
		fencetest.Grants(t, verbs(r), checks...)
	})
}

// Readers and writers overlap in all forms, through both libraries, at all levels of the store and in all of pgx's
// modes at once, with an audit trail. Their calls are cancelled at random.
func TestMarks_random(t *testing.T) {
	all := append([]place(nil), places...)
	for mode := pgx.QueryExecModeCacheStatement; mode <= pgx.QueryExecModeSimpleProtocol; mode++ {
		for level := sql.LevelReadUncommitted; level <= sql.LevelSerializable; level++ {
			if level != sql.LevelWriteCommitted && level != sql.LevelSnapshot && int(mode)%4 == int(level)%4 {
				all = append(all, place{dialect: sqlfence.PostgreSQL, level: level, pgx: true, mode: mode})
			}
		}
	}
	for _, one := range each {
		t.Run(one.dialect.String(), func(t *testing.T) {
			s := fencetest.Store{Again: again}
			first := newRig(t, one)
			first.db.SetMaxIdleConns(24)
			first.must(t, "CREATE TABLE entries (resource VARCHAR(64), id BIGINT, token BIGINT, PRIMARY KEY (resource, id))")
			for _, p := range all {
				if p.dialect != one.dialect || p.journal != one.journal {
					continue
				}
				r := newRigOn(t, p, first.store)
				if !p.pgx {
					r.db = first.db
				}
				audited(t, r)
				for _, how := range forms {
					s.Forms = append(s.Forms, r.appendAs(how))
				}
				s.Claims = append(s.Claims, r.claim)
				s.Reads, s.ClaimRead = append(s.Reads, r.readTwice()), r.claimRead
				s.Entries = func(ctx context.Context, resource string) (got []fencetest.Entry, err error) {
					err = r.do(ctx, resource, func(ctx context.Context, tx conn) error {
						got, err = r.entries(ctx, tx, resource)
						return err
					})
					return got, err
				}
			}
			fencetest.Random(t, s)
		})
	}
}

func again(err error) bool {
	return transient(err) || errors.Is(err, sqlfence.ErrUnclaimed)
}

// appendAs returns a form in which the rig's fence appends entries.
func (r *rig) appendAs(how form) fencetest.Form {
	f := fencetest.Form{Name: r.String() + ", " + string(how), Settles: how == do || how == check && !r.snapshots()}
	if !how.shared() {
		f.Alone = fmt.Sprint("alone, snapshots ", r.snapshots())
	}
	f.Write = func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
		return r.run(ctx, resource, how, func(ctx context.Context, tx conn) error {
			got, err := r.entries(ctx, tx, resource)
			if err != nil {
				return err
			}
			saw(got)
			return tx.exec(ctx, fmt.Sprintf("INSERT INTO entries VALUES ('%s', %d, %d)", resource, e.ID, e.Token))
		})
	}
	return f
}

var errChanged = errors.New("what was read under CheckRead has changed")

// readTwice returns a form that reads twice under the rig's fence and compares the results.
func (r *rig) readTwice() fencetest.Form {
	return fencetest.Form{
		Name: r.String() + ", CheckRead",
		Write: func(ctx context.Context, resource string, _ fencetest.Entry, saw func([]fencetest.Entry)) error {
			return r.run(ctx, resource, checkRead, func(ctx context.Context, tx conn) error {
				first, err := r.entries(ctx, tx, resource)
				if err != nil {
					return err
				}
				saw(first)
				again, err := r.entries(ctx, tx, resource)
				if err == nil && !slices.Equal(first, again) {
					err = fmt.Errorf("%w: %v, then %v", errChanged, first, again)
				}
				return err
			})
		},
	}
}

func (r *rig) entries(ctx context.Context, tx conn, resource string) ([]fencetest.Entry, error) {
	var text string
	if err := tx.scan(ctx, r.list("id", "token", "entries WHERE resource = '"+resource+"'"), &text); err != nil {
		return nil, err
	}
	return fencetest.Entries(text)
}
