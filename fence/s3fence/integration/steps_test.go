package integration_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// step is a place in what a client sends, at which it is held.
type step struct {
	method   string
	answered bool // held before the answer, not before the request
}

var steps = map[string]step{
	"before it reads":              {http.MethodGet, false},
	"after it has read":            {http.MethodGet, true},
	"before it writes":             {http.MethodPut, false},
	"after it wrote, not answered": {http.MethodPut, true},
}

// hold stops the client at its first request at the step. It returns a channel that is closed then, and what lets it
// go on.
func (p *proxy) hold(t *testing.T, s step) (held <-chan struct{}, release func()) {
	t.Helper()
	there, free := make(chan struct{}), make(chan struct{})
	var once, freeOnce sync.Once
	stop := func(method string, answered bool) {
		if method == s.method && answered == s.answered {
			once.Do(func() { close(there); <-free })
		}
	}
	p.onRequest(func(r *http.Request) error { stop(r.Method, false); return nil })
	p.onAnswer(func(r *http.Request, _ *http.Response) error { stop(r.Method, true); return nil })
	release = func() { freeOnce.Do(func() { close(free) }) }
	t.Cleanup(release)
	return there, release
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, what)
		panic("unreachable")
	}
}

// writes are the verbs that write, each with what it leaves of "base". ClaimRead writes too: a reader's mark.
var writes = map[string]struct {
	do   func(t *testing.T, p *proxy, token fence.Token, key string) error
	want string
}{
	"Put": {func(t *testing.T, p *proxy, token fence.Token, key string) error {
		t.Helper()
		return p.Put(holding(t, token), key, []byte("late"))
	}, "late"},
	"Update": {func(t *testing.T, p *proxy, token fence.Token, key string) error {
		t.Helper()
		return p.Update(holding(t, token), key, func(old []byte) ([]byte, error) { return append(old, "+late"...), nil })
	}, "base+late"},
	"Claim": {func(t *testing.T, p *proxy, token fence.Token, key string) error {
		t.Helper()
		return p.Claim(holding(t, token), key)
	}, "base"},
	"ClaimRead": {func(t *testing.T, p *proxy, token fence.Token, key string) error {
		t.Helper()
		return p.ClaimRead(reading(t, token), key)
	}, "base"},
}

// A holder that is paused at any step does not write over what its successor has done.
func TestBucket_holderPausedAtAStep(t *testing.T) {
	older, newer, _ := newPair(t)
	for verb, write := range writes {
		for name, s := range steps {
			for _, exists := range []bool{true, false} {
				key := fmt.Sprintf("%s/%s/there is one %t", verb, name, exists)
				t.Run(key, func(t *testing.T) {
					if exists {
						require.NoError(t, newer.Put(holding(t, 40), key, []byte("base")))
					}
					held, release := older.hold(t, s)
					defer older.quiet()
					result := make(chan error, 1)
					go func() { result <- write.do(t, older, 41, key) }()
					await(t, held, "the older holder did not come to the step")

					require.NoError(t, newer.Claim(holding(t, 54), key))
					seen := ""
					require.NoError(t, newer.Update(holding(t, 54), key, func(old []byte) ([]byte, error) {
						seen = string(old)
						return append(old, "+54"...), nil
					}))
					release()
					err := await(t, result, "the older holder did not return")
					payload, token := get(t, newer, key)
					require.Equal(t, fence.Token(54), token)
					require.Equal(t, seen+"+54", payload, "the successor's write was changed")

					if s.method == http.MethodPut && s.answered {
						require.NoError(t, err, "it was done before the claim")
						if exists {
							require.Equal(t, write.want, seen)
						}
						return
					}
					stale := staleError(t, err)
					require.Equal(t, fence.Token(54), stale.Highest)
					require.Equal(t, fence.Token(41), stale.Token)
					require.Equal(t, verb == "ClaimRead", stale.Read)
					require.Contains(t, stale.Resource, "/"+key)
					if exists {
						require.Equal(t, "base", seen)
					} else {
						require.Empty(t, seen)
					}
				})
			}
		}
	}
}

func requireStale(t *testing.T, err error) {
	t.Helper()
	require.NotNil(t, staleError(t, err))
}

func staleError(t *testing.T, err error) *fence.StaleError {
	t.Helper()
	require.ErrorIs(t, err, fence.ErrStale)
	var stale *fence.StaleError
	require.ErrorAs(t, err, &stale)
	return stale
}

// Both find no object: one creates it, the other is told and compares again.
func TestBucket_firstWriteRace(t *testing.T) {
	older, newer, _ := newPair(t)
	for verb, write := range writes {
		t.Run(verb, func(t *testing.T) {
			key := "first/" + verb
			olderHeld, releaseOlder := older.hold(t, steps["before it writes"])
			newerHeld, releaseNewer := newer.hold(t, steps["before it writes"])
			defer older.quiet()
			defer newer.quiet()
			olderDone, newerDone := make(chan error, 1), make(chan error, 1)
			go func() { olderDone <- write.do(t, older, 41, key) }()
			go func() { newerDone <- newer.Put(holding(t, 54), key, []byte("54")) }()
			await(t, olderHeld, "the older one did not write")
			await(t, newerHeld, "the newer one did not write")

			// The older one's creation is first, the newer one's fails and is made again over it.
			releaseOlder()
			require.NoError(t, await(t, olderDone, "the older one did not return"))
			releaseNewer()
			require.NoError(t, await(t, newerDone, "the newer one did not return"))
			payload, token := get(t, newer, key)
			require.Equal(t, "54", payload)
			require.Equal(t, fence.Token(54), token)
			requireStale(t, write.do(t, older, 41, key))
		})
	}
}

func TestBucket_verbs(t *testing.T) {
	p, _, bucket := newPair(t)
	const key = "a/key"
	ctx := holding(t, 41)

	_, err := p.Get(ctx, key)
	require.ErrorIs(t, err, errNoObject)
	require.NoError(t, p.Check(ctx, key), "an object that is not there refuses nobody")
	require.NoError(t, p.Claim(ctx, key))
	_, err = p.Get(ctx, key)
	require.ErrorIs(t, err, errNoObject, "claimed, never written")
	stale := staleError(t, p.Put(holding(t, 40), key, []byte("stale")))
	require.Equal(t, fence.StaleError{Resource: bucket + "/" + key, Token: 40, Highest: 41}, *stale)

	require.NoError(t, p.Put(ctx, key, nil))
	payload, token := get(t, p, key)
	require.Empty(t, payload)
	require.Equal(t, fence.Token(41), token)
	require.NoError(t, p.Put(ctx, key, []byte("one")), "a holder's second write")

	before, err := p.Get(ctx, key)
	require.NoError(t, err)
	require.NoError(t, p.Claim(ctx, key), "repeated")
	after, err := p.Get(ctx, key)
	require.NoError(t, err)
	require.Equal(t, before, after, "a repeated claim writes nothing")

	require.NoError(t, p.Claim(holding(t, 54), key))
	payload, token = get(t, p, key)
	require.Equal(t, "one", payload)
	require.Equal(t, fence.Token(54), token)
	for verb, write := range writes {
		requireStale(t, write.do(t, p, 41, key))
		payload, token = get(t, p, key)
		require.Equal(t, "one", payload, verb)
		require.Equal(t, fence.Token(54), token, verb)
	}
	requireStale(t, p.Check(ctx, key))
	require.NoError(t, p.Check(holding(t, 60), key))
	require.NoError(t, p.Check(holding(t, 54), key), "a check raises nothing")
}
