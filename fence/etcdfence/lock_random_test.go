package etcdfence_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
)

// Holders of two locks, and holders without a name, use one resource at random. Each verb must answer as fence.Guard,
// the model, does. They share a KV, so its guess of the name is sometimes out of date.
func TestMarks_locksRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		for history := range 200 {
			resource, strict := string(rune('a'+history)), r.IntN(2) == 0
			guard := fence.Guard{AllowUnnamed: !strict}
			m, err := etcdfence.NewMarks(c, etcdfence.Options{AllowUnnamed: !strict})
			require.NoError(t, err)
			kv, err := m.KV(resource)
			require.NoError(t, err)
			for range 40 {
				lock, token := []string{"", "accounts", "report"}[r.IntN(3)], fence.Token(1+r.IntN(12))
				ctx, reader := of(t, lock, token), readerOf(t, lock, fence.ReadToken(token))
				var got, want error
				switch r.IntN(5) {
				case 0:
					got, want = m.Claim(ctx, resource), guard.CheckContext(ctx, resource, token)
				case 1:
					got, want = m.ClaimRead(reader, resource), guard.CheckReadContext(reader, resource, fence.ReadToken(token))
				case 2:
					if lock != "" && r.IntN(4) == 0 {
						got, want = m.Move(ctx, resource), guard.Move(resource, token, lock)
					}
				default:
					before := srv.Rev()
					got, want = second(kv.Put(ctx, "d", "")), guard.CheckContext(ctx, resource, token)
					require.Equal(t, want == nil, srv.Rev() > before)
				}
				require.Equal(t, want, got, "%s %d of %q, strict %v", resource, token, lock, strict)
			}
			_, _, lock, _ := etcdfence.ParseMarks(contents(srv, "fence/")["fence/"+resource])
			require.Equal(t, guard.Locks()[resource], lock)
		}
	})
}
