package integration_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// hold stops the client's first request with the method, or the answer to it. It returns a channel that is closed then,
// and a function that releases the request.
func (p *proxy) hold(t *testing.T, method string, answered bool) (held <-chan struct{}, release func()) {
	t.Helper()
	there, free := make(chan struct{}), make(chan struct{})
	var once, freeOnce sync.Once
	stop := func(sent string, after bool) {
		if sent == method && after == answered {
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

// writes are the verbs that write, each with what it leaves of the payload "base". ClaimRead writes a reader's mark.
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

// On a server: an object that is only claimed, then written, and a repeated claim, which writes nothing.
func TestBucket_Claim(t *testing.T) {
	p, _, bucket := newPair(t)
	const key = "a/key"
	ctx := holding(t, 41)
	_, err := p.Get(ctx, key)
	require.ErrorIs(t, err, s3fence.ErrNoObject)
	require.NoError(t, p.Check(ctx, key), "an object that is not there refuses nobody")
	require.NoError(t, p.Claim(ctx, key))
	_, err = p.Get(ctx, key)
	require.ErrorIs(t, err, s3fence.ErrNoObject, "claimed, never written")
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
	require.Equal(t, before, after)
}

// A claim keeps a large payload, and Options.MaxSize counts only the payload.
func TestBucket_ClaimRead_keepsThePayload(t *testing.T) {
	p, _, bucket := newPair(t)
	exact, err := s3fence.NewBucket(p.client, bucket, s3fence.Options{MaxSize: 1 << 20})
	require.NoError(t, err)
	payload := make([]byte, 1<<20)
	payload[1<<19] = 'x'
	require.NoError(t, exact.Put(holding(t, 41), "key", payload))
	require.NoError(t, exact.ClaimRead(reading(t, 54), "key"))
	got, err := exact.Get(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, payload, got.Payload)
	require.Equal(t, fence.Token(41), got.Token)
	out, err := p.client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: new("key")})
	require.NoError(t, err)
	require.EqualValues(t, 148+1<<20, *out.ContentLength)
}
