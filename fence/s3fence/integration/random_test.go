package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

const (
	writers = 16

	// attemptsEnv has the number of attempted writes of the long form of the run, such as 100000.
	attemptsEnv = "LEASEFENCE_S3_ATTEMPTS"
	fewAttempts = 1000
	// perObject is how many of them are at one object, which grows with each.
	perObject = 1000
)

// Sixteen writers, each with a proxy that drops requests and answers at random, append to one object under tokens that
// change hands. What was accepted is there once, in the order of the tokens; what was refused is not.
func TestBucket_random(t *testing.T) {
	attempts := int64(fewAttempts)
	if s := os.Getenv(attemptsEnv); s != "" {
		var err error
		attempts, err = strconv.ParseInt(s, 10, 64)
		require.NoError(t, err, attemptsEnv)
	}
	first := newProxy(t, "", nil)
	bucket := lastBucket()
	var lines []*proxy
	for range writers {
		p := newProxy(t, bucket, nil)
		lossy := func(r *http.Request) error {
			if r.Method == http.MethodPut && rand.IntN(20) == 0 || rand.IntN(200) == 0 {
				return errDropped
			}
			return nil
		}
		p.onRequest(lossy)
		p.onAnswer(func(r *http.Request, _ *http.Response) error { return lossy(r) })
		lines = append(lines, p)
	}
	var sum outcomes
	for n := int64(0); n < attempts; n += perObject {
		r := &randomRun{name: fmt.Sprintf("log %d", n/perObject), left: min(perObject, attempts-n), accepted: map[string]bool{}}
		r.tokens.Store(1)
		var wg sync.WaitGroup
		for w, p := range lines {
			wg.Go(func() { r.write(t, p, w) })
		}
		wg.Wait()
		r.requireOrder(t, first)
		sum.add(r)
	}
	t.Logf("%d attempts, %d tokens: %d accepted, %d refused, %d unknown, 0 out of order, 0 lost",
		attempts, sum.tokens, sum.accepted, sum.refused, sum.unknown)
	require.Positive(t, sum.accepted)
	require.Positive(t, sum.refused)
	require.Greater(t, sum.tokens, attempts/perObject+1, "the tokens changed hands")
}

// randomRun is what the writers do to one object.
type randomRun struct {
	name   string
	tokens atomic.Int64

	mu       sync.Mutex // guards the fields below
	left     int64
	accepted map[string]bool // false: unknown
	refused  int
}

// next reports whether there is another attempt to make.
func (r *randomRun) next() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left--
	return r.left >= 0
}

func (r *randomRun) write(t *testing.T, p *proxy, w int) {
	t.Helper()
	token := fence.Token(r.tokens.Load())
	for n := 0; r.next(); n++ {
		// The lock changes hands; those that had it go on until they are told, or a little longer.
		if rand.IntN(20) == 0 {
			token = fence.Token(r.tokens.Add(1))
			if err := p.Claim(holding(t, token), r.name); err != nil {
				continue
			}
		}
		entry := fmt.Sprintf("%d/%d/%d", token, w, n)
		err := p.Update(holding(t, token), r.name, func(old []byte) ([]byte, error) {
			return append(old, entry+"\n"...), nil
		})
		r.mu.Lock()
		switch {
		case err == nil:
			r.accepted[entry] = true
		case errors.Is(err, s3fence.ErrUnknown):
			r.accepted[entry] = false
		case errors.Is(err, fence.ErrStale):
			r.refused++
		}
		r.mu.Unlock()
		if errors.Is(err, fence.ErrStale) && rand.IntN(2) == 0 {
			token = fence.Token(r.tokens.Load()) // another goroutine of the holder's
		}
	}
}

// requireOrder compares the object with what its writers were told.
func (r *randomRun) requireOrder(t *testing.T, p *proxy) {
	t.Helper()
	payload, _ := get(t, p, r.name)
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
		require.Contains(t, r.accepted, entry, "refused, but done")
	}
	for entry, sure := range r.accepted {
		require.True(t, !sure || found[entry], "accepted and not there: %s", entry)
	}
}

// outcomes are the sums of a run.
type outcomes struct {
	tokens                     int64
	accepted, refused, unknown int
}

func (o *outcomes) add(r *randomRun) {
	o.tokens += r.tokens.Load()
	o.refused += r.refused
	for _, sure := range r.accepted {
		if sure {
			o.accepted++
		} else {
			o.unknown++
		}
	}
}
