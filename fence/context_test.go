package fence_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// tenure is what a context carries: a token of a writer or of a reader, and the name of its lock.
type tenure struct {
	write fence.Token
	read  fence.ReadToken
	lock  string
}

//nolint:revive // as other helpers, it begins with t
func requireCarries(t *testing.T, ctx context.Context, want tenure) {
	t.Helper()
	write, writes := fence.FromContext(ctx)
	read, reads := fence.ReadFromContext(ctx)
	lock, named := fence.LockFromContext(ctx)
	require.Equal(t, want, tenure{write, read, lock})
	require.Equal(t, []bool{want.write != 0, want.read != 0, want.lock != ""}, []bool{writes, reads, named})
}

// of is the context of a lock's holder, and readerOf that of a reader.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewContext(t.Context(), token), lock)
}

func readerOf(t *testing.T, lock string, token fence.ReadToken) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewReadContext(t.Context(), token), lock)
}

// A token hides that of the context around it, with its name. A token that is not valid is none.
func TestContext_carriesOneTenure(t *testing.T) {
	writer, reader := of(t, "report", 41), readerOf(t, "catalogue", 54)
	requireCarries(t, t.Context(), tenure{})
	requireCarries(t, fence.NewContext(writer, 41), tenure{write: 41})
	requireCarries(t, fence.NewContext(reader, 60), tenure{write: 60})
	requireCarries(t, fence.NewReadContext(writer, 41), tenure{read: 41})
	for _, invalid := range []fence.Token{0, -1, 1 << 48} {
		requireCarries(t, fence.NewContext(writer, invalid), tenure{})
		requireCarries(t, fence.NewReadContext(reader, fence.ReadToken(invalid)), tenure{})
	}
	requireCarries(t, fence.WithLock(t.Context(), "report"), tenure{})
	requireCarries(t, fence.WithLock(writer), tenure{write: 41})
	requireCarries(t, fence.WithLock(writer, "a", "b"), tenure{write: 41})
	requireCarries(t, writer, tenure{write: 41, lock: "report"})
	requireCarries(t, reader, tenure{read: 54, lock: "catalogue"})
}

func TestForLock(t *testing.T) {
	nested := fencetest.Inside(t, of(t, "accounts", 54), of(t, "report", 41))
	requireCarries(t, fence.ForLock(nested, "report"), tenure{write: 41, lock: "report"})
	requireCarries(t, fence.ForLock(nested, "accounts"), tenure{write: 54, lock: "accounts"})
	requireCarries(t, fence.ForLock(nested, "other"), tenure{})

	reader := fencetest.Inside(t, readerOf(t, "catalogue", 60), nested)
	requireCarries(t, fence.ForLock(reader, "report"), tenure{write: 41, lock: "report"})
	requireCarries(t, fence.ForLock(reader, "catalogue"), tenure{read: 60, lock: "catalogue"})

	set := fence.WithLock(fence.NewContext(t.Context(), 54), "orders", "stock")
	requireCarries(t, fence.ForLock(set, "stock"), tenure{write: 54, lock: "stock"})
}

// A request's token hides the locks that the service itself holds.
func TestForLock_findsNothingBehindATokenOfAnother(t *testing.T) {
	service := of(t, "stock", 60)
	orders := fence.WithLock(fence.NewContext(service, 54), "orders")
	for _, request := range []context.Context{
		orders, fence.NewContext(service, 54), fence.NewContext(service, 0), fence.NewReadContext(service, 54),
		fence.ForLock(orders, "orders"),
	} {
		requireCarries(t, fence.ForLock(request, "stock"), tenure{})
	}
}
