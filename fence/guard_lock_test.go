package fence_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

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
		require.EqualError(t, g.LoadLocks(map[string]string{"rows": lock, "other": "l"}), "fence: invalid token: "+want+` (resource "rows")`)
		require.ErrorIs(t, g.CheckContext(of(t, lock, 54), "rows", 54), fence.ErrInvalidToken)
	}
	require.Empty(t, g.Marks())
	require.Empty(t, g.Locks())
	longest := strings.Repeat("l", 2304)
	require.NoError(t, g.CheckContext(of(t, longest, 54), "rows", 54))
	require.Equal(t, map[string]string{"rows": longest}, g.Locks())
}
