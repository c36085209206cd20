package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// longEnv has the duration of the long form of the run, such as 10m.
const longEnv = "S3FENCE_RANDOM"

// Sixteen writers, each with a proxy that drops requests and answers at random, append to one object under tokens that
// change hands. What was accepted is there once, in the order of the tokens; what was refused is not.
func TestBucket_random(t *testing.T) {
	const writers = 16
	length := 3 * time.Second
	if s := os.Getenv(longEnv); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	first := newProxy(t, "", nil)
	bucket := lastBucket()
	end := time.Now().Add(length)
	var tokens atomic.Int64
	tokens.Store(1)
	var (
		mu       sync.Mutex
		accepted = map[string]bool{} // false: unknown
		refused  int
	)
	var wg sync.WaitGroup
	for w := range writers {
		p := newProxy(t, bucket, nil)
		lossy := func(r *http.Request) error {
			if r.Method == http.MethodPut && rand.IntN(20) == 0 || rand.IntN(200) == 0 {
				return errDropped
			}
			return nil
		}
		p.onRequest(lossy)
		p.onAnswer(func(r *http.Request, _ *http.Response) error { return lossy(r) })
		wg.Go(func() {
			token := fence.Token(tokens.Load())
			for n := 0; time.Now().Before(end); n++ {
				// The lock changes hands; those that had it go on until they are told, or a little longer.
				if rand.IntN(20) == 0 {
					token = fence.Token(tokens.Add(1))
					if err := p.Claim(holding(t, token), "log"); err != nil {
						continue
					}
				}
				entry := fmt.Sprintf("%d/%d/%d", token, w, n)
				err := p.Update(holding(t, token), "log", func(old []byte) ([]byte, error) {
					return append(old, entry+"\n"...), nil
				})
				mu.Lock()
				switch {
				case err == nil:
					accepted[entry] = true
				case errors.Is(err, s3fence.ErrUnknown):
					accepted[entry] = false
				case errors.Is(err, fence.ErrStale):
					refused++
				}
				mu.Unlock()
				if errors.Is(err, fence.ErrStale) && rand.IntN(2) == 0 {
					token = fence.Token(tokens.Load()) // another goroutine of the holder's
				}
			}
		})
	}
	wg.Wait()

	payload, _ := get(t, first, "log")
	found := map[string]bool{}
	var last fence.Token
	for entry := range strings.Lines(payload) {
		entry = strings.TrimSuffix(entry, "\n")
		token, err := fence.Parse(entry[:strings.IndexByte(entry, '/')])
		require.NoError(t, err)
		require.GreaterOrEqual(t, token, last, "accepted out of token order: %s", entry)
		last = token
		require.False(t, found[entry], "done twice: %s", entry)
		found[entry] = true
		_, ok := accepted[entry]
		require.True(t, ok, "refused, but done: %s", entry)
	}
	lost, unknown, sure := 0, 0, 0
	for entry, ok := range accepted {
		if ok {
			sure++
		} else {
			unknown++
		}
		if ok && !found[entry] {
			lost++
		}
	}
	require.Zero(t, lost, "accepted writes that are not there")
	t.Logf("%d tokens, %d accepted, %d refused, %d unknown, 0 out of order, 0 lost", tokens.Load(), sure, refused, unknown)
	require.Positive(t, sure)
	require.Positive(t, refused)
	require.Greater(t, last, fence.Token(1), "the tokens changed hands")
}
