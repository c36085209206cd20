package redisfence_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

var attempts = flag.Int("redisfence.attempts", 10_000, "attempted writes of the randomized test")

// Sixteen writers take over from each other at random, and wake up at random with tokens that are stale. What is in the
// log is in the order of tokens, each write that was accepted is in it once, and none that was refused is.
func TestFence_sixteenWriters(t *testing.T) {
	const writers = 16
	c := newClient(t)
	var (
		f        = newFence(t, c)
		latest   atomic.Int64 // the token that was issued last
		left     atomic.Int64
		accepted sync.Map
		refused  atomic.Int64
		wg       sync.WaitGroup
		seed     = rand.Uint64()
	)
	t.Logf("seed %d", seed)
	latest.Store(1 << 53) // in era 32, where doubles round
	left.Store(int64(*attempts))
	for w := range writers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			token := fence.Token(latest.Add(1))
			for n := 0; left.Add(-1) >= 0; n++ {
				if rnd.IntN(50) == 0 { // takes over; who had it before does not know
					token = fence.Token(latest.Add(1))
					if rnd.IntN(2) == 0 {
						if err := f.Claim(as(t, token), "log"); err != nil && !errors.Is(err, fence.ErrStale) {
							t.Error(err)
							return
						}
					}
				}
				entry := fmt.Sprintf("%d %d %d", token, w, n)
				_, err := f.Do(as(t, token), "log", redisfence.Command("RPUSH", "log", entry))
				switch {
				case err == nil:
					accepted.Store(entry, true)
				case errors.Is(err, fence.ErrStale):
					refused.Add(1)
					if rnd.IntN(2) == 0 { // or it goes on, as a writer that has not noticed does
						token = fence.Token(latest.Add(1))
					}
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}

	var newest fence.Token
	log := c.LRange(t.Context(), "log", 0, -1).Val()
	for i, entry := range log {
		text, _, _ := strings.Cut(entry, " ")
		token, err := fence.Parse(text)
		require.NoError(t, err)
		require.GreaterOrEqual(t, token, newest, "entry %d was accepted out of order", i)
		newest = token
		_, ok := accepted.LoadAndDelete(entry)
		require.True(t, ok, "%q is in the log, and was not accepted, or is in it twice", entry)
	}
	for entry := range accepted.Range {
		t.Errorf("%q was accepted and is not in the log", entry)
	}
	require.Equal(t, *attempts, len(log)+int(refused.Load()))
	t.Logf("%d attempts: %d accepted, %d refused, %d tokens", *attempts, len(log), refused.Load(), latest.Load()-1<<53)
	require.Greater(t, len(log), *attempts/100)
	require.Greater(t, int(refused.Load()), *attempts/100)
}
