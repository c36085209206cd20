package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

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
