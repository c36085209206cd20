package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestSession_Lock_givesAHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{Prefix: "jobs/", Owner: "me"})
		ctx, cancel := context.WithCancel(t.Context())
		l, err := e.s.Lock(ctx, "a/b")
		require.NoError(t, err)
		require.Equal(t, "a/b", l.Name())
		kv := e.srv.Keys("")[0]
		require.Equal(t, string(kv.Key), l.Key())
		require.True(t, strings.HasPrefix(l.Key(), fmt.Sprintf("jobs/a/b/%x-", int64(e.s.Status().LeaseID))))
		require.Equal(t, "me", string(kv.Value))
		require.Equal(t, int64(e.s.Status().LeaseID), kv.Lease, "no metadata without the lease")
		require.Equal(t, fence.Token(kv.CreateRevision), l.Token())
		inCtx, ok := fence.FromContext(l.Context())
		require.True(t, ok)
		require.Equal(t, l.Token(), inCtx)

		// The acquisition's context ends with the acquisition.
		cancel()
		e.at(time.Hour)
		requireLive(t, l)
		held, err := e.c.Txn(t.Context()).If(l.IsOwner()).Commit()
		require.NoError(t, err)
		require.True(t, held.Succeeded)
		require.NoError(t, l.Unlock(t.Context()))
		held, err = e.c.Txn(t.Context()).If(l.IsOwner()).Commit()
		require.NoError(t, err)
		require.False(t, held.Succeeded)
	})
}

// A key without a lease, which would never go away, blocks nobody, and is reported now and then.
func TestSession_Lock_passesOverStrayKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e := start(t, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		e.srv.Put("a/planted", "x")
		e.srv.Put(fmt.Sprintf("a/%x", int64(e.s.Status().LeaseID)), "without the lease")
		e.srv.Put("a/b/nested", "y")
		for range 3 {
			l := e.lock(t, "a")
			require.NoError(t, l.Unlock(t.Context()))
			l = granted(t, e.wait(t.Context(), "a")).lock
			var locked *lease.LockedError
			require.ErrorAs(t, second(e.s.TryLock(t.Context(), "a")), &locked)
			require.Equal(t, l.Key(), locked.Key)
			require.NoError(t, l.Unlock(t.Context()))
		}
		synctest.Wait()
		require.NotContains(t, log.String(), "a/planted", "a key may contain the ID of a lease")
		require.Equal(t, 1, strings.Count(log.String(), "below=a/ keys=2"))
		require.Equal(t, 1, strings.Count(log.String(), "no contender"))
		require.NotContains(t, log.String(), "nested")
		require.Len(t, e.keys("a/"), 3, "other people's keys stay")
	})
}

// Text that somebody else has written is clipped where it is kept and where it is shown.
func TestSession_TryLock_longKeyAndValue(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		granted, err := e.c.Grant(t.Context(), 60)
		require.NoError(t, err)
		long := strings.Repeat("x", 600_000)
		e.put(t, fmt.Sprintf("a/%x-%s", int64(granted.ID), long), long, granted.ID)
		_, err = e.s.TryLock(t.Context(), "a")
		var locked *lease.LockedError
		require.ErrorAs(t, err, &locked)
		require.Less(t, len(locked.Key), 5000)
		require.Less(t, len(locked.Owner), 5000)
		require.Less(t, len(err.Error()), 500)
	})
}

// A key is not reused while a request to enter with it may still arrive: the reaper looks for it.
func TestSession_Lock_doesNotUseALateKeyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 10 { // whichever suffix is chosen first
			e := start(t, lease.Options{})
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
			late := e.lock(t, "a")
			require.NoError(t, late.Unlock(t.Context()))
			for range 3 {
				l := e.lock(t, "a")
				require.NotEqual(t, late.Key(), l.Key())
				requireLive(t, l)
				require.NoError(t, l.Unlock(t.Context()))
			}
			l := e.lock(t, "a")
			e.at(2 * third)
			requireLive(t, l)
		}
	})
}

// For every kind of lock, the context carries the token, and it and the hooks carry the names that the token belongs to.
// The names have the session's prefix, since a session without it can lock the same name.
func TestLock_Context_carriesTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string // the names that hooks get
		e := start(t, lease.Options{Prefix: "svc/", Era: 3, Hooks: &lease.Hooks{
			AcquireEnd: func(_ context.Context, _ lease.Acquisition, r lease.Acquired) { told = r.Locks },
		}})
		named := func(want string) func(context.Context, fence.Token) error {
			return func(ctx context.Context, token fence.Token) error {
				got, _ := fence.LockFromContext(ctx)
				require.Equal(t, want, got)
				carried, _ := fence.FromContext(fence.ForLock(ctx, want))
				require.Equal(t, token, carried)
				return nil
			}
		}
		ctx := t.Context()
		require.NoError(t, e.s.Do(ctx, "report", func(ctx context.Context, outer fence.Token) error {
			return e.s.Do(ctx, "accounts", func(ctx context.Context, token fence.Token) error {
				require.NoError(t, named("svc/report")(fence.ForLock(ctx, "svc/report"), outer))
				return named("svc/accounts")(ctx, token)
			})
		}))
		require.Equal(t, []string{"svc/accounts"}, told)
		err := e.s.Do(ctx, "around", func(ctx context.Context, _ fence.Token) error {
			return e.s.RDo(ctx, "a", func(ctx context.Context, token fence.ReadToken) error {
				name, _ := fence.LockFromContext(ctx)
				require.Equal(t, "svc/a", name)
				require.Equal(t, []string{name}, told)
				got, _ := fence.ReadFromContext(ctx)
				require.Equal(t, token, got)
				require.Equal(t, uint16(3), token.Era())
				_, ok := fence.FromContext(ctx)
				require.False(t, ok, "a reader has no other token, not even that of a lock around it")
				require.Len(t, e.keys("svc/a/"), 1)
				return errMine
			})
		})
		require.ErrorIs(t, err, errMine)
		require.Empty(t, e.keys(""))
		require.NoError(t, e.s.DoTree(ctx, "a/b", named("svc/a/~b")))
		require.Equal(t, []string{"svc/a/~b"}, told)
		require.NoError(t, e.s.DoPermit(ctx, "pool", 1, named("svc/pool/~slot/0")))
		require.Equal(t, []string{"svc/pool/~slot/0"}, told)
		require.NoError(t, e.s.DoAll(ctx, []string{"stock", "orders"}, func(ctx context.Context, token fence.Token) error {
			_, ok := fence.LockFromContext(ctx)
			require.False(t, ok)
			require.Equal(t, []string{"svc/stock", "svc/orders"}, told)
			return errors.Join(named("svc/orders")(fence.ForLock(ctx, "svc/orders"), token),
				named("svc/stock")(fence.ForLock(ctx, "svc/stock"), token))
		}))
	})
}
