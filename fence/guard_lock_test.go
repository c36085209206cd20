package fence_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

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

func TestGuard_Move_waitsForTheOldLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g fence.Guard
		moved := make(chan error, 1)
		require.NoError(t, g.DoContext(of(t, "accounts", 54), "rows", 54, func() error {
			go func() { moved <- g.Move("rows", 60, "ledger") }()
			synctest.Wait()
			require.Empty(t, moved)
			require.Equal(t, map[string]string{"rows": "accounts"}, g.Locks())
			return nil
		}))
		require.NoError(t, <-moved)
		require.Equal(t, map[string]string{"rows": "ledger"}, g.Locks())
	})
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
	require.Equal(t, before.Locks(), g.Locks(), "it keeps the lock that it follows")
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
