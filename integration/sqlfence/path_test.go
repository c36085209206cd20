package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// pathIncrement is one read-modify-write of a path's holder.
func (r *rig) pathIncrement(ctx context.Context, path string, at func(step)) (n int64, err error) {
	token, _ := fence.FromContext(ctx)
	at(beforeBegin)
	err = r.transaction(ctx, func(tx conn) (err error) {
		at(begun)
		if err := r.checkPath(ctx, tx, path); err != nil {
			return err
		}
		at(guarded)
		if n, err = read(ctx, tx); err != nil {
			return err
		}
		at(hasRead)
		if err := write(ctx, tx, n, token); err != nil {
			return err
		}
		at(hasWritten)
		return nil
	})
	at(committed)
	return n, err
}

func TestMarks_paths(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		t.Helper()
		fencetest.Paths(t, 8, 11, func() fencetest.Tree {
			r.reset(t)
			return fencetest.Tree{
				Claim: r.claimPath,
				Check: func(ctx context.Context, path string) error {
					_, err := r.pathIncrement(ctx, path, nowhere)
					return err
				},
				Marks: func() any {
					all, err := r.pairs(t.Context(), "SELECT token, read_token FROM leasefence_marks ORDER BY resource")
					require.NoError(t, err)
					return all
				},
			}
		})
	})
}

// A newer holder of the node above, the same node, a node below or another branch comes at every step of a transaction.
func TestMarks_pathComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		for _, path := range []string{"a", "a/b", "a/b/c", "a/c"} {
			for _, when := range []step{beforeBegin, begun, guarded, hasRead, hasWritten, committed} {
				t.Run(fmt.Sprintf("%s, %s", path, when), func(t *testing.T) { r.pathComes(t, path, when) })
			}
		}
	})
}

func (r *rig) pathComes(t *testing.T, path string, when step) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claimPath(as(t, older), "a/b"))
	m := waits
	switch {
	case path == "a/c" && r.kind == storetest.PostgreSQL && !r.snapshots():
		m = mustPass // there a claim of another branch does not wait
	case path == "a/c":
		m = mayPass
	}
	err, arrived := r.meets(t, func(at func(step)) error {
		_, err := r.pathIncrement(as(t, older), "a/b", at)
		return err
	}, when, m, func() error { return r.claimPath(as(t, newer), path) })
	require.NoError(t, arrived)
	accepted := int64(0)
	switch {
	case !when.before():
		require.NoError(t, err)
		accepted = 1
	case path != "a/c":
		requirePathRefused(t, err, path)
	case !transient(err): // the marks above have changed since a snapshot
		require.NoError(t, err)
		accepted = 1
	}
	n, err := r.pathIncrement(as(t, newer), path, nowhere)
	require.NoError(t, err)
	require.Equal(t, accepted, n, "what the newer holder has read")
	_, again := r.pathIncrement(as(t, older), "a/b", nowhere)
	if path == "a/c" {
		require.NoError(t, again)
		return
	}
	requirePathRefused(t, again, path)
	requirePathRefused(t, r.claimPath(as(t, older), "a/b"), path)
	require.Zero(t, r.row(t).stale)
}

func requirePathRefused(t *testing.T, err error, newerAt string) {
	t.Helper()
	if transient(err) {
		return // the caller begins again, and is refused then
	}
	stale, ok := errors.AsType[*fence.StaleError](err)
	require.True(t, ok, "%v", err)
	want := fence.StaleError{Resource: "a/b", Token: older, Highest: newer}
	switch newerAt {
	case "a":
		want.Resource = "a"
	case "a/b/c":
		want.ByReader = true
	}
	require.Equal(t, want, *stale)
}

// Transactions of two branches run side by side. The claim of the node above them waits for both.
func TestMarks_pathsRunSideBySide(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		if r.kind == storetest.SQLite {
			return // one writer at a time
		}
		require.NoError(t, r.claimPath(as(t, older), "a/b"))
		require.NoError(t, r.claimPath(as(t, older+1), "a/c"))
		claimed := make(chan error, 1)
		inside := func(ctx context.Context, path string, body func()) error {
			return r.transaction(ctx, func(tx conn) error {
				if err := r.checkPath(ctx, tx, path); err != nil {
					return err
				}
				body()
				return nil
			})
		}
		require.NoError(t, inside(as(t, older+1), "a/c", func() {
			require.NoError(t, inside(as(t, older), "a/b", func() {
				go func() { claimed <- r.claimPath(as(t, newer), "a") }()
				r.awaitWaiter(t)
			}))
			r.awaitWaiter(t)
			require.Empty(t, claimed, "the claim has not waited for the second")
		}))
		require.NoError(t, <-claimed)
		require.ErrorIs(t, inside(as(t, older), "a/b", func() {}), fence.ErrStale)
	})
}

// CheckPath raises no mark, so it refuses a path that was not claimed, or of which only the end was.
func TestMarks_CheckPath_unclaimed(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		t.Helper()
		_, err := r.pathIncrement(as(t, older), "a/b", nowhere)
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed)
		require.NoError(t, r.claim(as(t, older), "a/b"))
		_, err = r.pathIncrement(as(t, older), "a/b", nowhere)
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed, "the node above")
		require.NoError(t, r.claimPath(as(t, older), "a/b"))
		_, err = r.pathIncrement(as(t, newer), "a/b", nowhere)
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed, "a newer token")
		_, err = r.pathIncrement(as(t, older), "a/b", nowhere)
		require.NoError(t, err)
		require.ErrorContains(t, r.claimPath(as(t, older), "/a"), "does not begin with a slash")
		require.ErrorContains(t, r.claimPath(as(t, older), ""), "want 1 to 255 bytes")
		require.ErrorIs(t, r.claimPath(asReader(t, older), "a"), fence.ErrInvalidToken)
	})
}

// Transactions of one holder run one after the other, and each reads what those before it have written.
func TestMarks_CheckPath_runsOneAfterTheOther(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.claimPath(as(t, older), "a/b"))
		type result struct {
			n   int64
			err error
		}
		second := make(chan result, 1)
		_, err := r.pathIncrement(as(t, older), "a/b", func(at step) {
			if at != hasWritten {
				return
			}
			go func() {
				n, err := r.pathIncrement(as(t, older), "a/b", nowhere)
				second <- result{n, err}
			}()
			r.awaitWaiter(t)
			require.Empty(t, second)
		})
		require.NoError(t, err)
		got := <-second
		if transient(got.err) {
			return // the caller begins again
		}
		require.NoError(t, got.err)
		require.EqualValues(t, 1, got.n)
		require.EqualValues(t, 2, r.row(t).n)
	})
}

// The check is not the first statement, and an older holder writes between the read and the check: the check notices
// it.
func TestMarks_CheckPath_afterARead(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		if r.readersLock() || r.noSnapshot() {
			return // nobody can write in between; or the documented limit: these levels keep no snapshot that could be compared
		}
		require.NoError(t, r.claimPath(as(t, older), "a/b"))
		before, ctx := as(t, older), as(t, newer)
		err := r.transaction(ctx, func(tx conn) error {
			_, err := read(ctx, tx)
			require.NoError(t, err)
			_, err = r.pathIncrement(before, "a/b", nowhere)
			require.NoError(t, err)
			require.NoError(t, r.claimPath(ctx, "a/b"))
			return r.checkPath(ctx, tx, "a/b")
		})
		require.True(t, errors.Is(err, sqlfence.ErrUnclaimed) || transient(err), "%v", err)
	})
}

// Each node above follows its own lock: its name is that of the token's lock with one part less for each level.
func TestMarks_pathsFollowLocks(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		t.Helper()
		lock := func(node string) (name string) {
			require.NoError(t, r.scan(t.Context(), "SELECT lock_name FROM leasefence_marks WHERE resource = '"+node+"'", &name))
			return name
		}
		tree := of(t, "app/a/~b/~c", older)
		require.NoError(t, r.claimPath(tree, "a/b/c"))
		_, err := r.pathIncrement(tree, "a/b/c", nowhere)
		require.NoError(t, err, "what was claimed")
		require.Equal(t, []string{"app/a", "app/a/~b", "app/a/~b/~c"}, []string{lock("a"), lock("a/b"), lock("a/b/c")})

		for path, name := range map[string]string{"a": "other/a", "a/b/c": "other/a/~b/~c", "a/b": "app/a/~c"} {
			for _, err := range []error{
				r.claimPath(of(t, name, newer), path),
				r.transaction(t.Context(), func(tx conn) error { return r.checkPath(of(t, name, newer), tx, path) }),
			} {
				other, ok := errors.AsType[*fence.OtherLockError](err)
				require.True(t, ok, "%v", err)
				require.False(t, other.Read, "the token is a writer's")
			}
		}
		require.ErrorIs(t, r.claimPath(as(t, newer), "a/b/c"), fence.ErrOtherLock, "without a name")
		require.ErrorIs(t, r.claimPath(of(t, "app/a/~b", newer), "a/b/d"), fence.ErrOtherLock, "the lock of the node above")

		plain := of(t, "app/plain", newer)
		require.NoError(t, r.claimPath(plain, "a/b/d"), "its name does not tell the locks of the nodes above")
		_, err = r.pathIncrement(plain, "a/b/d", nowhere)
		require.NoError(t, err)
		require.Equal(t, []string{"app/a", "app/a/~b", "app/plain"}, []string{lock("a"), lock("a/b"), lock("a/b/d")})
		require.NoError(t, r.claimPath(of(t, "app/a", newer+1), "a"))
		_, err = r.pathIncrement(plain, "a/b/d", nowhere)
		require.ErrorIs(t, err, fence.ErrStale)
	})
}

// A newer holder of the node above comes between the snapshot of the path's first guard and its lock. The server grants
// the lock on an old version of the marks, see TestMarks_CheckRead_locksAnOldVersion.
func TestMarks_CheckPath_locksAnOldVersion(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			r, x, meet := segmentedRigs(t, level)
			path := resource + "/b"
			require.NoError(t, r.claimPath(as(t, older), path))
			between := func() {
				r.awaitSnapshot(t)
				second := asReader(t, older+1)
				require.NoError(t, r.claimRead(second, resource), "a version with the same key")
				written := make(chan error, 1)
				require.NoError(t, r.checked(second, nowhere, func(conn) error {
					go func() { written <- r.run(as(t, newer), check, nowhere, nothing) }()
					r.awaitWaiter(t)
					return nil
				}))
				require.NoError(t, <-written, "a claim, before its holder reads")
			}
			meet.Store(&between)
			_, err := x.pathIncrement(as(t, older), path, nowhere)
			require.Nil(t, meet.Load(), "meet was not called")
			require.Error(t, err, "a stale write")
			require.True(t, transient(err) || errors.Is(err, fence.ErrStale), "%v", err)
			require.Zero(t, r.row(t).n)
		})
	}
}
