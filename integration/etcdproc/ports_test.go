package etcdproc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Nobody picks a port twice, though no server listens there yet. A second process cannot either.
func TestPickAddr_reserves(t *testing.T) {
	picked := map[string]bool{}
	for range 500 {
		addr, err := pickAddr()
		require.NoError(t, err)
		require.False(t, picked[addr])
		picked[addr] = true
	}
}
