package s3fence_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// of returns the context of a lock's holder; with "" the token comes without a name.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return named(fence.NewContext(t.Context(), token), lock)
}

// readerOf returns the context of a read lock's holder.
func readerOf(t *testing.T, lock string, token fence.ReadToken) context.Context {
	t.Helper()
	return named(fence.NewReadContext(t.Context(), token), lock)
}

func named(ctx context.Context, lock string) context.Context {
	if lock == "" {
		return ctx
	}
	return fence.WithLock(ctx, lock)
}

// The longest name fits into the bytes that are read of an object without its payload.
func TestBucket_longestLock(t *testing.T) {
	l, b := newLedger(t, s3fence.Options{MaxSize: 10})
	lock := strings.Repeat("é", fence.MaxLock/2)
	require.NoError(t, b.Put(of(t, lock, 54), "rows", []byte("0123456789")))
	require.NoError(t, b.ClaimRead(readerOf(t, lock, 60), "rows"))
	require.Greater(t, len(l.body("rows")), 3*fence.MaxLock)
	require.NoError(t, b.Check(of(t, lock, 60), "rows"))
	require.NoError(t, b.CheckRead(readerOf(t, lock, 60), "rows"))
	require.ErrorIs(t, b.Check(of(t, lock[2:], 60), "rows"), fence.ErrOtherLock)
	require.NoError(t, b.Put(of(t, lock, 60), "rows", []byte("9876543210")), "Put reads only the line")
	require.NoError(t, b.Update(of(t, lock, 60), "rows", func(old []byte) ([]byte, error) { return old, nil }))
	o, err := b.Get(t.Context(), "rows")
	require.NoError(t, err)
	require.Equal(t, s3fence.Object{Payload: []byte("9876543210"), Token: 60, Lock: lock, ETag: o.ETag}, o)
}
