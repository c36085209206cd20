package fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

func TestFromContext_withoutToken(t *testing.T) {
	got, ok := fence.FromContext(t.Context())
	require.False(t, ok)
	require.Zero(t, got)
}

// pain 40: the token of a tenure does not become its successor's, whatever happens meanwhile.
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

func TestHolderFromContext(t *testing.T) {
	h := fence.Holder{Name: "host/7", TTL: 10 * time.Second}
	ctx := fence.NewHolderContext(t.Context(), 41, h)
	got, ok := fence.FromContext(ctx)
	require.True(t, ok)
	require.Equal(t, fence.Token(41), got)
	require.Equal(t, h, fence.HolderFromContext(ctx))

	other := fence.NewContext(ctx, 54)
	require.Zero(t, fence.HolderFromContext(other), "the holder is the token's, and that is another one")
	require.Zero(t, fence.HolderFromContext(t.Context()))

	_, ok = fence.FromContext(fence.NewHolderContext(ctx, 0, h))
	require.False(t, ok)
}

type revoked struct{ error }

func (revoked) ReleaseCause() fence.Cause { return fence.Revoked }

func TestCauseOf(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	require.Equal(t, fence.Explicit, fence.CauseOf(ctx))
	cancel(fmt.Errorf("work: %w", revoked{errors.New("an operator did it")}))
	require.Equal(t, fence.Revoked, fence.CauseOf(ctx))

	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(errors.New("done"))
	require.Equal(t, fence.Explicit, fence.CauseOf(ctx))
}
