package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// A key in use, or burned, is never given to another entry; a free one is reused. The state depends on the keys in use,
// not on how many were burned.
func TestKeys_random(t *testing.T) {
	g := &grant{id: 0x2a, s: &Session{nonce: "nonce", revisions: new(etcd.Revisions)}}
	burned := map[string]bool{}
	inUse := map[string]queue.Entry{}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	for range 20_000 {
		for key, e := range inUse {
			if random.IntN(3) > 0 && len(inUse) < 10 {
				break
			}
			delete(inUse, key)
			switch random.IntN(3) {
			case 0:
				g.burn(e)
				burned[key] = true
			case 1:
				g.recycle(e)
				_, ours := g.takeBack(key) // a restore brings it back
				require.True(t, ours)
				burned[key] = true
			default:
				g.recycle(e)
			}
		}
		e := g.take(fmt.Sprint(random.IntN(50)), "", random.IntN(2) == 0)
		require.NotContains(t, inUse, e.Key)
		require.False(t, burned[e.Key])
		_, ours := g.takeBack(e.Key)
		require.False(t, ours, "it is in use")
		inUse[e.Key] = e
		require.LessOrEqual(t, len(g.keys.names), len(inUse))
		require.Len(t, g.keys.taken, len(inUse))
	}
	require.Greater(t, len(burned), 5000)
	require.Positive(t, g.keys.base)
}
