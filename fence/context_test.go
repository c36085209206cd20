package fence_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
)

func TestFromContext_withoutToken(t *testing.T) {
	got, ok := fence.FromContext(t.Context())
	require.False(t, ok)
	require.Zero(t, got)
}

// A context keeps its token when a successor's context is made from it.
func TestNewContext_keepsItsToken(t *testing.T) {
	old := fence.NewContext(t.Context(), 41)
	successor := fence.NewContext(old, 54)

	got, ok := fence.FromContext(old)
	require.True(t, ok)
	require.Equal(t, fence.Token(41), got)

	got, ok = fence.FromContext(successor)
	require.True(t, ok)
	require.Equal(t, fence.Token(54), got)
}

func TestNewContext_invalidTokenIsNone(t *testing.T) {
	for _, tok := range []fence.Token{0, -1, 1 << 48} {
		ctx := fence.NewContext(fence.NewContext(t.Context(), 41), tok)
		got, ok := fence.FromContext(ctx)
		require.False(t, ok, "token %d", int64(tok))
		require.Zero(t, got)
	}
}

// A context carries one tenure: a read lock inside of a writer's lock hides the writer's token, and a writer's lock
// inside of a read lock hides the reader's.
func TestNewReadContext_hidesTheWritersToken(t *testing.T) {
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

// held is the context of a function that runs under a lock.
func held(ctx context.Context, token fence.Token, locks ...string) context.Context {
	return fence.WithLock(fence.NewContext(ctx, token), locks...)
}

// inside is the context of a function that runs under a lock, inside of another's, as lease.Session.Do makes it.
//
//nolint:revive // as other helpers, it begins with t
func inside(t *testing.T, outer, handle context.Context) context.Context {
	t.Helper()
	work, done := scope.Work(handle, outer)
	t.Cleanup(done)
	return work
}

func TestForLock_findsTheTokenOfAnOuterLock(t *testing.T) {
	ctx := inside(t, held(t.Context(), 41, "report"), held(t.Context(), 54, "accounts"))
	for lock, want := range map[string]fence.Token{"report": 41, "accounts": 54} {
		chosen := fence.ForLock(ctx, lock)
		got, _ := fence.FromContext(chosen)
		require.Equal(t, want, got)
		name, ok := fence.LockFromContext(chosen)
		require.True(t, ok)
		require.Equal(t, lock, name)
	}
	_, ok := fence.FromContext(fence.ForLock(ctx, "other"))
	require.False(t, ok, "no token")

	reader := inside(t, ctx, fence.WithLock(fence.NewReadContext(t.Context(), 60), "catalogue"))
	got, ok := fence.FromContext(fence.ForLock(reader, "report"))
	require.True(t, ok)
	require.Equal(t, fence.Token(41), got)
	_, ok = fence.FromContext(fence.ForLock(reader, "catalogue"))
	require.False(t, ok, "it is a reader's")
	read, ok := fence.ReadFromContext(fence.ForLock(reader, "catalogue"))
	require.True(t, ok)
	require.Equal(t, fence.ReadToken(60), read)
}

func TestForLock_choosesOfSeveralThatWereGrantedAsOne(t *testing.T) {
	set := held(t.Context(), 54, "orders", "stock")
	_, ok := fence.LockFromContext(set)
	require.False(t, ok)
	name, ok := fence.LockFromContext(fence.ForLock(set, "stock"))
	require.True(t, ok)
	require.Equal(t, "stock", name)
}

func TestWithLock_belongsToItsToken(t *testing.T) {
	ctx := held(t.Context(), 41, "report")
	for _, other := range []context.Context{
		fence.NewContext(ctx, 41), fence.NewContext(ctx, 42), fence.NewContext(ctx, 0), fence.NewReadContext(ctx, 41),
		fence.WithLock(ctx), fence.WithLock(ctx, "a", "b"),
	} {
		_, ok := fence.LockFromContext(other)
		require.False(t, ok)
	}
	_, ok := fence.LockFromContext(fence.WithLock(t.Context(), "report"))
	require.False(t, ok, "no token")
	_, ok = fence.FromContext(fence.WithLock(t.Context(), "report"))
	require.False(t, ok)
}

// A request's token hides the locks that the service itself holds.
func TestForLock_findsNothingBehindATokenOfAnother(t *testing.T) {
	service := held(t.Context(), 60, "stock")
	for _, request := range []context.Context{
		fence.NewContext(service, 54), held(service, 54, "orders"), fence.NewContext(service, 0), fence.NewReadContext(service, 54),
		fence.ForLock(held(service, 54, "orders"), "orders"),
	} {
		_, ok := fence.FromContext(fence.ForLock(request, "stock"))
		require.False(t, ok)
	}
}
