package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

// A server may hold a lock itself. A request without a name does not get the name of that lock, even if the tokens are
// equal.
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

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "54", "054", "54,54", "54, 55", "+54", "54 ", "-1", "9223372036854775807", "54\x0054"} {
		f.Add(s, "", false)
		f.Add(s, s, true)
	}
	f.Fuzz(func(t *testing.T, first, second string, two bool) {
		values := []string{first, second}
		if !two {
			values = values[:1]
		}
		got, err := wire.Parse("field", "Token", values)
		if err != nil {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.Zero(t, got)
			require.Less(t, len(err.Error()), 200)
			require.False(t, strings.ContainsAny(err.Error(), "\n\x00"))
			return
		}
		require.False(t, two)
		require.True(t, got.Valid())
		require.Equal(t, first, got.String())
	})
}

// Beside a token, a caller may set a field to the value that is sent, or not at all.
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
