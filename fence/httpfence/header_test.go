package httpfence_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

func FuzzFromHeader(f *testing.F) {
	for _, s := range []string{"", "54", "054", "54,54", "54, 55", "+54", "54 ", "-1", "9223372036854775807", "54\x0054"} {
		f.Add(s, "", false)
		f.Add(s, s, true)
	}
	f.Fuzz(func(t *testing.T, first, second string, two bool) {
		h := http.Header{}
		h.Add(httpfence.Header, first)
		if two {
			h.Add(httpfence.Header, second)
		}
		got, err := httpfence.FromHeader(h)
		if err != nil {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.Zero(t, got)
			require.Less(t, len(err.Error()), 200)
			require.False(t, strings.ContainsAny(err.Error(), "\n\x00"))
			return
		}
		require.False(t, two)
		require.True(t, got.Valid())
		_, err = httpfence.ReadFromHeader(h)
		require.Equal(t, httpfence.ErrMissing, err)
		read, err := httpfence.ReadFromHeader(http.Header{httpfence.ReadHeader: {first}})
		require.NoError(t, err)
		require.Equal(t, fence.ReadToken(got), read)
		require.Equal(t, first, got.String())
	})
}

func TestLockFromHeader(t *testing.T) {
	lock, err := httpfence.LockFromHeader(http.Header{httpfence.LockHeader: {"%C3%A4rger"}})
	require.NoError(t, err)
	require.Equal(t, "ärger", lock)
	lock, err = httpfence.LockFromHeader(http.Header{})
	require.NoError(t, err)
	require.Empty(t, lock)
	for _, values := range [][]string{{""}, {"ärger"}, {"%c3%a4rger"}, {"a, b"}, {"a", "b"}} {
		_, err = httpfence.LockFromHeader(http.Header{httpfence.LockHeader: values})
		require.ErrorIs(t, err, fence.ErrInvalidToken)
	}
}
