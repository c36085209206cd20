package httpfence_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// The tests of package wire have the legal and illegal values.
func TestFromHeader(t *testing.T) {
	h := http.Header{httpfence.Header: {"54"}, httpfence.LockHeader: {"%C3%A4rger"}}
	token, err := httpfence.FromHeader(h)
	require.NoError(t, err)
	require.Equal(t, fence.Token(54), token)
	lock, err := httpfence.LockFromHeader(h)
	require.NoError(t, err)
	require.Equal(t, "ärger", lock)
	_, err = httpfence.ReadFromHeader(h)
	require.Equal(t, httpfence.ErrMissing, err)

	read, err := httpfence.ReadFromHeader(http.Header{httpfence.ReadHeader: {"60"}})
	require.NoError(t, err)
	require.Equal(t, fence.ReadToken(60), read)
	lock, err = httpfence.LockFromHeader(http.Header{})
	require.NoError(t, err)
	require.Empty(t, lock)
	_, err = httpfence.FromHeader(http.Header{httpfence.Header: {"54", "54"}})
	require.EqualError(t, err, "fence: invalid token: header Fencing-Token has 2 values, want 1")
	_, err = httpfence.LockFromHeader(http.Header{httpfence.LockHeader: {"ärger"}})
	require.ErrorIs(t, err, fence.ErrInvalidToken)
}
