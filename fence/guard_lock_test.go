package fence_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// of is the context of a lock's holder.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewContext(t.Context(), token), lock)
}

func readerOf(t *testing.T, lock string, token fence.ReadToken) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewReadContext(t.Context(), token), lock)
}

// withContext are the verbs that know the lock's name.
var withContext = map[string]func(g *fence.Guard, ctx context.Context, resource string) error{
	"CheckContext": func(g *fence.Guard, ctx context.Context, resource string) error {
		token, _ := fence.FromContext(ctx)
		return g.CheckContext(ctx, resource, token)
	},
	"DoContext": func(g *fence.Guard, ctx context.Context, resource string) error {
		token, _ := fence.FromContext(ctx)
		return g.DoContext(ctx, resource, token, func() error { return nil })
	},
}

// The holder of another lock is not let in by its higher token, and so it does not fence the rightful holder out.
func TestGuard_refusesAnotherLock(t *testing.T) {
	for name, verb := range withContext {
		t.Run(name, func(t *testing.T) {
			var g fence.Guard
			require.NoError(t, verb(&g, of(t, "accounts", 54), "rows"))

			for _, token := range []fence.Token{41, 54, 60} {
				err := verb(&g, of(t, "report", token), "rows")
				require.ErrorIs(t, err, fence.ErrOtherLock)
				require.NotErrorIs(t, err, fence.ErrStale)
				var other *fence.OtherLockError
				require.ErrorAs(t, err, &other)
				require.Equal(t, fence.OtherLockError{Resource: "rows", Token: token, Lock: "report", Follows: "accounts"}, *other)
			}
			require.NoError(t, verb(&g, of(t, "accounts", 54), "rows"))
			require.ErrorIs(t, verb(&g, of(t, "accounts", 53), "rows"), fence.ErrStale)
			require.NoError(t, verb(&g, of(t, "accounts", 55), "rows"))
		})
	}
}

func TestGuard_refusesAReaderOfAnotherLock(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.CheckReadContext(readerOf(t, "accounts", 54), "rows", 54))
	err := g.CheckReadContext(readerOf(t, "report", 60), "rows", 60)
	require.EqualError(t, err,
		`fence: token of another lock: 60 of a reader of lock "report" for "rows", which follows lock "accounts"`)
	require.ErrorIs(t, g.CheckContext(of(t, "report", 60), "rows", 60), fence.ErrOtherLock, "a reader has named the lock")
	require.NoError(t, g.CheckContext(of(t, "accounts", 55), "rows", 55))
}

// A token without a name is refused where the resource follows a lock and the verb could have known it. A stale one is stale.
func TestGuard_tokensWithoutAName(t *testing.T) {
	for name, verb := range withContext {
		t.Run(name, func(t *testing.T) {
			bare := func(token fence.Token) context.Context { return fence.NewContext(t.Context(), token) }
			var g fence.Guard
			require.NoError(t, verb(&g, bare(50), "rows"), "the resource follows no lock")
			require.NoError(t, verb(&g, of(t, "accounts", 50), "rows"), "the same token tells the lock")
			require.EqualError(t, verb(&g, bare(54), "rows"),
				`fence: token of another lock: 54 without the name of a lock for "rows", which follows lock "accounts"`)
			require.ErrorIs(t, verb(&g, bare(41), "rows"), fence.ErrStale)
			require.ErrorIs(t, verb(&g, fence.WithLock(bare(54), "accounts", "stock"), "rows"), fence.ErrOtherLock, "one of two locks")

			require.NoError(t, g.Check("rows", 51), "a verb that knows no name")
			require.ErrorIs(t, g.CheckContext(of(t, "accounts", 54), "rows", 55), fence.ErrOtherLock, "the name is another token's")

			g.AllowUnnamed = true
			require.NoError(t, verb(&g, bare(54), "rows"))
			require.ErrorIs(t, verb(&g, of(t, "report", 60), "rows"), fence.ErrOtherLock)
		})
	}
}

func TestGuard_Move(t *testing.T) {
	var g fence.Guard
	old, next := of(t, "accounts", 54), of(t, "ledger", 60)
	require.NoError(t, g.CheckContext(old, "rows", 54))
	require.ErrorIs(t, g.Move("rows", 53, "ledger"), fence.ErrStale)
	require.NoError(t, g.CheckContext(old, "rows", 54), "a move that is refused changes nothing")

	require.NoError(t, g.Move("rows", 60, "ledger"))
	require.NoError(t, g.CheckContext(next, "rows", 60))
	require.ErrorIs(t, g.CheckContext(of(t, "accounts", 61), "rows", 61), fence.ErrOtherLock)
	require.ErrorIs(t, g.Check("rows", 59), fence.ErrStale, "it has claimed")

	require.NoError(t, g.Move("new", 60, "ledger"))
	require.Equal(t, map[string]string{"rows": "ledger", "new": "ledger"}, g.Locks())
}

func TestGuard_Move_waitsForTheOldLock(t *testing.T) {
	var g fence.Guard
	running, finish, moved := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		done <- g.DoContext(of(t, "accounts", 54), "rows", 54, func() error {
			close(running)
			<-finish
			if follows := g.Locks()["rows"]; follows != "accounts" {
				return errors.New("follows " + follows)
			}
			return nil
		})
	}()
	<-running
	go func() { moved <- g.Move("rows", 60, "ledger") }()
	close(finish)
	require.NoError(t, <-done)
	require.NoError(t, <-moved)
}

func TestGuard_LoadLocks(t *testing.T) {
	var before, g fence.Guard
	require.NoError(t, before.CheckContext(of(t, "accounts", 54), "rows", 54))
	require.NoError(t, before.Check("free", 54))
	require.Equal(t, map[string]string{"rows": "accounts"}, before.Locks())

	require.NoError(t, g.Load(before.Marks()))
	require.NoError(t, g.LoadLocks(before.Locks()))
	require.ErrorIs(t, g.CheckContext(of(t, "report", 60), "rows", 60), fence.ErrOtherLock)
	require.NoError(t, g.LoadLocks(map[string]string{"rows": "report"}))
	require.Equal(t, before.Locks(), g.Locks(), "it goes on following the lock that it knows")
	require.Equal(t, before.Marks(), g.Marks())
}

func TestGuard_boundsLocks(t *testing.T) {
	var g fence.Guard
	for lock, want := range map[string]string{
		"":                        "its lock's name has 0 bytes, want 1 to 2304",
		strings.Repeat("l", 2305): "its lock's name has 2305 bytes, want 1 to 2304",
		"a\x00":                   `its lock's name is "a\x00", want UTF-8 without NUL`,
		"\xff":                    `its lock's name is "\xff", want UTF-8 without NUL`,
	} {
		require.EqualError(t, g.Move("rows", 54, lock), "fence: invalid token: "+want)
		require.EqualError(t, g.LoadLocks(map[string]string{"rows": lock, "other": "l"}), `fence: resource "rows": fence: invalid token: `+want)
		require.ErrorIs(t, g.CheckContext(of(t, lock, 54), "rows", 54), fence.ErrInvalidToken)
	}
	require.Empty(t, g.Marks())
	require.Empty(t, g.Locks())
	require.EqualError(t, g.LoadLocks(map[string]string{strings.Repeat("n", 1025): "l"}), "fence: resource has 1025 bytes, want 0 to 1024")
	longest := strings.Repeat("l", 2304)
	require.NoError(t, g.CheckContext(of(t, longest, 54), "rows", 54))
	require.Equal(t, map[string]string{"rows": longest}, g.Locks())
}

// A request that has ended before its turn leaves nothing: neither its token nor the name of its lock.
func TestGuard_DoContext_thatHasEndedLeavesNothing(t *testing.T) {
	var g fence.Guard
	ctx, cancel := context.WithCancel(of(t, "report", 100))
	cancel()
	require.ErrorIs(t, g.DoContext(ctx, "rows", 100, func() error { return nil }), context.Canceled)
	require.ErrorIs(t, g.CheckContext(ctx, "rows", 100), context.Canceled)
	require.Empty(t, g.Marks())
	require.NoError(t, g.CheckContext(of(t, "accounts", 54), "rows", 54))
}
