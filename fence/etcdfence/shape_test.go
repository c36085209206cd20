package etcdfence_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// While the lock is held, or for the holder of the newest token, the answers to random requests are as without the gate,
// and so is what they leave. If a write raises the mark and changes nothing else, its revision is another one. Refusals
// by the server are among the answers.
func TestKV_answersAsWithout(t *testing.T) {
	const steps = 300
	for _, gate := range []string{"a lock", "a mark", "a mark that each write raises"} {
		t.Run(gate, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				without, plain := start(t)
				under, gated := start(t)
				_, h := contend(t, plain.Client, "locks/n")
				contend(t, gated.Client, "locks/n") // of the same lease and revision
				without.Put("fence/r", "41 0")
				under.Put("fence/r", "41 0")
				kv, token, raises := markKV(t, gated, "r"), fence.Token(41), false
				switch gate {
				case "a lock":
					kv = newKV(t, gated, h)
				case "a mark that each write raises":
					token, raises = 42, true
				}
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				r := &requests{
					rand.New(rand.NewPCG(seed, 1)), without.Leases()[0].ID,
					func() int64 { return without.Rev() - 1 },
				}

				refused, changes := 0, 0
				for range steps {
					op, before := r.request(), without.Rev()
					want, wantErr := do(t.Context(), plain, op)
					got, err := do(with(t, token), kv, op)
					require.Equal(t, wantErr, err)
					if err != nil {
						refused++
					}
					changed := without.Rev() > before
					if changed {
						changes++
					}
					if changed || !raises {
						require.Equal(t, want, got)
						require.Equal(t, without.Rev(), under.Rev())
					}
					if raises && under.Rev() > before {
						require.Equal(t, fmt.Sprintf("%d 0", token), contents(under, "fence/")["fence/r"])
						token++
					}
					for without.Rev() < under.Rev() { // the mark alone
						without.Put("fence/r", "")
					}
				}
				require.Equal(t, fmt.Sprint(without.Keys("d/")), fmt.Sprint(under.Keys("d/")))
				require.Positive(t, refused)
				require.Less(t, refused, steps/2, "the server must accept most calls, or the test compares little")
				require.Greater(t, changes, steps/10)
			})
		})
	}
}
