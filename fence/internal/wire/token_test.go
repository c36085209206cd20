package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

// A server may hold a lock itself: its name is not that of a request without one, though the tokens are equal.
func TestToken_In_hasOnlyWhatWasSent(t *testing.T) {
	server := fence.WithLock(fence.NewContext(t.Context(), 54), "the server's")
	ctx := wire.Token{Write: 54}.In(server)
	token, _ := fence.FromContext(ctx)
	require.Equal(t, fence.Token(54), token)
	_, named := fence.LockFromContext(ctx)
	require.False(t, named)

	ctx = wire.Token{Write: 54, Lock: "accounts"}.In(server)
	lock, _ := fence.LockFromContext(ctx)
	require.Equal(t, "accounts", lock)

	ctx = wire.Token{Read: 54, Lock: "accounts"}.In(server)
	read, _ := fence.ReadFromContext(ctx)
	require.Equal(t, fence.ReadToken(54), read)
	_, writes := fence.FromContext(ctx)
	require.False(t, writes)
	require.Equal(t, server, wire.Token{}.In(server))
}

// What a caller sets beside a token is what is sent, or nothing.
func TestFields_Allows(t *testing.T) {
	f, err := wire.FieldsOf(fence.WithLock(fence.NewContext(t.Context(), 54), "ä"))
	require.NoError(t, err)
	require.Equal(t, wire.Fields{"54", "", "%C3%A4"}, f)
	require.True(t, f.HasToken())
	require.Equal(t, "54 for a and %C3%A4 for c", f.Text([3]string{"a", "b", "c"}))
	for field, value := range f {
		require.True(t, f.Allows(field, nil))
		require.Equal(t, value != "", f.Allows(field, []string{value}))
		for _, set := range [][]string{{"55"}, {value, value}, {value, ""}} {
			require.False(t, f.Allows(field, set), "%q", set)
		}
	}

	f, err = wire.FieldsOf(t.Context())
	require.NoError(t, err)
	require.False(t, f.HasToken())
	_, err = wire.FieldsOf(fence.WithLock(fence.NewReadContext(t.Context(), 54), "\xff"))
	require.ErrorIs(t, err, fence.ErrInvalidToken)
}
