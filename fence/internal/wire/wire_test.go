package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

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

// The characters of a header's value (RFC 9110), without those that may be trimmed, split at or read as syntax.
const header = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/%"

func TestEncodeLock_fitsIntoAHeader(t *testing.T) {
	for lock, want := range map[string]string{
		"accounts":                "accounts",
		"/locks/a-b_c.d~e":        "/locks/a-b_c.d~e",
		" a, b ":                  "%20a%2C%20b%20",
		"100%":                    "100%25",
		"ärger\r\nX: y":           "%C3%A4rger%0D%0AX%3A%20y",
		`"q";=`:                   "%22q%22%3B%3D",
		strings.Repeat("é", 1152): strings.Repeat("%C3%A9", 1152),
	} {
		require.Equal(t, want, wire.EncodeLock(lock))
		got, err := wire.DecodeLock([]string{want})
		require.NoError(t, err)
		require.Equal(t, lock, got)
	}
}

func TestDecodeLock_errors(t *testing.T) {
	_, err := wire.DecodeLock([]string{"%61"})
	require.EqualError(t, err, `fence: invalid token: its lock's name is "%61", want UTF-8 in which "%" and two upper-case `+
		`hex digits stand for each byte but A-Z, a-z, 0-9 and "-._~/"`)
	_, err = wire.DecodeLock([]string{"a", "a"})
	require.EqualError(t, err, "fence: invalid token: its lock's name has 2 values, want 1")
	lock, err := wire.DecodeLock(nil)
	require.NoError(t, err)
	require.Empty(t, lock)
}

func FuzzDecodeLock(f *testing.F) {
	for _, text := range []string{
		"", "accounts", "a%2Cb", "%C3%A9", "%FF", "%00", "a b", "a,b", "a+b", "é", "a\n", "%", "%2", "%zz", "%c3%a9", "%C3%a9",
		"%61", "%2F", "%2D", "a;b", `"a"`, "a%", strings.Repeat("a", 2304), strings.Repeat("a", 2305),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		require.Empty(t, strings.Trim(wire.EncodeLock(text), header))
		lock, err := wire.DecodeLock([]string{text})
		if err != nil {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.Empty(t, lock)
			require.Less(t, len(err.Error()), 500)
			require.False(t, strings.ContainsAny(err.Error(), "\n\x00"))
		} else {
			require.NoError(t, fence.CheckLock(lock))
			require.Equal(t, text, wire.EncodeLock(lock), "a name has one spelling")
		}
		if fence.CheckLock(text) == nil {
			lock, err := wire.DecodeLock([]string{wire.EncodeLock(text)})
			require.NoError(t, err)
			require.Equal(t, text, lock)
		}
	})
}
