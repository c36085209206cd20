package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

func (e *env) tree(t *testing.T, path string) *lease.TreeLock {
	t.Helper()
	l, err := e.s.TryLockTree(t.Context(), path)
	require.NoError(t, err)
	return l
}

// Branches are held at the same time; a node excludes the nodes above and below it, and they exclude it.
func TestSession_TryLockTree_excludesAboveAndBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{Prefix: "p/"})
		other := open(t, e.srv, lease.Options{Prefix: "p/"})
		l := e.tree(t, "a/b/c")
		require.Equal(t, "a/b/c", l.Path())
		for path, holder := range map[string]string{
			"a": "a", "a/b": "a/b", "a/b/c": "a/b/c", "a/b/c/d": "a/b/c", "a/b/d": "", "a/c": "", "a/bb": "", "b": "",
		} {
			got, err := other.s.TryLockTree(t.Context(), path)
			if holder == "" {
				require.NoError(t, err, path)
				require.Greater(t, got.Token(), l.Token())
				require.NoError(t, got.Unlock(t.Context()))
				continue
			}
			locked := new(lease.LockedError)
			require.ErrorAs(t, err, &locked, path)
			require.Equal(t, holder, locked.Name)
			require.Equal(t, l.Token(), locked.Token)
		}
		for _, name := range []string{"a/b", "a/b/c", "a/x"} {
			require.NoError(t, other.lock(t, name).Unlock(t.Context()), "a plain lock of %s is another one", name)
		}
		_, err := other.s.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrLocked, "that of the root is the same")
		require.NoError(t, l.Unlock(t.Context()))
		root := other.lock(t, "a")
		_, err = e.s.TryLockTree(t.Context(), "a/b/c")
		require.ErrorIs(t, err, lease.ErrLocked)
		require.NoError(t, root.Unlock(t.Context()))
		e.at(time.Second)
		require.Empty(t, e.keys(""))
	})
}

// The first error is that of the node nearest to the root: below a holder there are only waiters.
func TestSession_TryLockTree_namesTheHolder(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.join(t)
		l := e.tree(t, "a")
		waiter := begin(other, func() (*lease.TreeLock, error) { return other.s.LockTree(t.Context(), "a/b") })
		_, err := e.s.TryLockTree(t.Context(), "a/b")
		locked := new(lease.LockedError)
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "a", locked.Name)
		require.Equal(t, l.Token(), locked.Token)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, granted(t, waiter).lock.Unlock(t.Context()))
	})
}

// Nodes are served in the order of arrival, and nobody overtakes a waiter for a node above.
func TestSession_LockTree_order(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		granted := make(chan string, 8)
		held := map[string]*lease.TreeLock{}
		wait := func(path string) {
			s := e.join(t).s
			go func() {
				l, err := s.LockTree(t.Context(), path)
				if err != nil {
					granted <- err.Error()
					return
				}
				held[path] = l
				granted <- path
			}()
			synctest.Wait()
		}
		grants := func(want ...string) {
			t.Helper()
			synctest.Wait()
			require.Len(t, granted, len(want))
			var got []string
			for range want {
				got = append(got, <-granted)
			}
			require.ElementsMatch(t, want, got)
		}
		before := len(e.writes())
		first := e.tree(t, "a/b/c")
		require.Len(t, e.writes()[before:], 1, "one transaction, however deep")
		wait("a/d") // beside it
		grants("a/d")
		wait("a/b") // behind the first
		wait("a/b/e")
		wait("a/f")
		wait("a")
		grants("a/f")
		require.NoError(t, first.Unlock(t.Context()))
		require.Len(t, e.writes()[before:], 2)
		grants("a/b")
		require.NoError(t, held["a/b"].Unlock(t.Context()))
		grants("a/b/e")
		for _, path := range []string{"a/b/e", "a/d", "a/f"} {
			grants()
			require.NoError(t, held[path].Unlock(t.Context()))
		}
		grants("a")
		require.NoError(t, held["a"].Unlock(t.Context()))
		require.Empty(t, e.keys(""))
	})
}

// A node's token goes with its writes: an earlier holder of a node above or below is refused once the new holder has
// claimed.
func TestSession_DoTree_carriesTheToken(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var g fence.Guard
		claim := func(path string) (token fence.Token) {
			err := e.s.DoTree(t.Context(), path, func(ctx context.Context, got fence.Token) error {
				token, _ = fence.FromContext(ctx)
				return errors.Join(g.ClaimPath(path, got), ctx.Err())
			})
			require.NoError(t, err)
			return token
		}
		below, beside, above := claim("a/b/c"), claim("a/d"), claim("a/b")
		require.ErrorIs(t, g.CheckPath("a/b/c", below), fence.ErrStale)
		require.NoError(t, g.CheckPath("a/d", beside))
		below = claim("a/b/c")
		require.ErrorIs(t, g.CheckPath("a/b", above), fence.ErrStale)
		require.NoError(t, g.CheckPath("a/b/c", below))
		require.Empty(t, e.keys(""))
	})
}

func (e *env) rlock(t *testing.T, name string) *lease.ReadLock {
	t.Helper()
	l, err := e.s.TryRLock(t.Context(), name)
	require.NoError(t, err)
	return l
}

// Readers of several sessions hold a name together; a writer waits for all of them, and later readers wait for the
// writer.
func TestSession_RLock_isShared(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.join(t)
		one, two, three := e.rlock(t, "a"), e.rlock(t, "a"), other.rlock(t, "a")
		require.Less(t, one.Token(), two.Token())
		require.Less(t, two.Token(), three.Token())
		require.NotEqual(t, one.Key(), two.Key())
		require.Equal(t, "a", one.Name())

		_, err := e.s.TryLock(t.Context(), "a")
		locked := new(lease.LockedError)
		require.ErrorAs(t, err, &locked)
		require.Equal(t, one.Key(), locked.Key)

		writer := other.wait(t.Context(), "a")
		_, err = e.s.TryRLock(t.Context(), "a")
		require.ErrorAs(t, err, &locked, "a reader must not overtake a waiting writer")
		require.Contains(t, other.keys("a/"), locked.Key)
		require.NotContains(t, []string{one.Key(), two.Key(), three.Key()}, locked.Key)
		last := later(func() error {
			return e.s.RDo(t.Context(), "a", func(_ context.Context, token fence.ReadToken) error {
				if token <= three.Token() {
					return errors.New("the token has not grown")
				}
				return nil
			})
		})
		for i, l := range []*lease.ReadLock{one, three, two} {
			e.at(time.Duration(i+1) * time.Minute)
			requirePending(t, writer)
			require.NoError(t, l.Err())
			require.NoError(t, l.Unlock(t.Context()))
		}
		got := granted(t, writer)
		require.Equal(t, 3*time.Minute, got.at, "at once")
		e.at(4 * time.Minute)
		requirePending(t, last)
		require.NoError(t, got.lock.Unlock(t.Context()))
		require.NoError(t, receive(t, last))
		require.Empty(t, e.keys("a/"))
	})
}
