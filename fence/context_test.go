package fence_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

func TestFromContext_withoutToken(t *testing.T) {
	got, ok := fence.FromContext(t.Context())
	require.False(t, ok)
	require.Zero(t, got)
}

// The token of a tenure does not become its successor's, whatever happens meanwhile.
func TestNewContext_keepsItsToken(t *testing.T) {
	old := fence.NewContext(t.Context(), 41)
	successor := fence.NewContext(old, 54)

	got, ok := fence.FromContext(old)
	require.True(t, ok)
	require.Equal(t, fence.Token(41), got)

	got, ok = fence.FromContext(successor)
	require.True(t, ok)
	require.Equal(t, fence.Token(54), got)

	var g fence.Guard
	require.NoError(t, g.Claim("orders", 54))
	got, _ = fence.FromContext(old)
	require.ErrorIs(t, g.Check("orders", got), fence.ErrStale)
}

func TestNewContext_invalidTokenIsNone(t *testing.T) {
	for _, tok := range []fence.Token{0, -1, 1 << 48} {
		ctx := fence.NewContext(fence.NewContext(t.Context(), 41), tok)
		got, ok := fence.FromContext(ctx)
		require.False(t, ok, "token %d", int64(tok))
		require.Zero(t, got)
	}
}

// A context carries one tenure: under a read lock a writer's token is not found, though a lock around it has one, and the other
// way about.
func TestNewReadContext_isNoWriters(t *testing.T) {
	reader := fence.NewReadContext(fence.NewContext(t.Context(), 41), 54)
	got, ok := fence.ReadFromContext(reader)
	require.True(t, ok)
	require.Equal(t, fence.ReadToken(54), got)
	_, ok = fence.FromContext(reader)
	require.False(t, ok)

	writer := fence.NewContext(reader, 60)
	_, ok = fence.ReadFromContext(writer)
	require.False(t, ok)

	_, ok = fence.ReadFromContext(fence.NewReadContext(reader, 1<<48))
	require.False(t, ok, "an invalid token is none, and hides that of the context around it")
}
