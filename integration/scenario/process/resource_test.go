package process_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// Paths of the resource.
const (
	fenced = "/fenced"
	plain  = "/plain"
)

// resource is a resource with a fence and its twin without one. It records the token of each write.
type resource struct {
	*httptest.Server

	mu       sync.Mutex // guards the fields below
	accepted map[string][]fence.Token
	refused  []fence.Token
	changed  chan struct{} // closed and replaced when either changes
}

func newResource(t *testing.T) *resource {
	t.Helper()
	r := &resource{accepted: make(map[string][]fence.Token), changed: make(chan struct{})}
	withFence, err := httpfence.NewAtomicMiddleware(func(r *http.Request) string { return r.URL.Path }, &fence.Guard{},
		httpfence.Options{Refuse: func(w http.ResponseWriter, req *http.Request, err error) {
			if !errors.Is(err, fence.ErrStale) {
				t.Errorf("refused: %v", err)
			}
			r.note(func() { r.refused = append(r.refused, tokenOf(t, req)) })
			httpfence.Error(w, err)
		}})
	require.NoError(t, err)
	write := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		r.note(func() { r.accepted[req.URL.Path] = append(r.accepted[req.URL.Path], tokenOf(t, req)) })
	})
	mux := http.NewServeMux()
	mux.Handle(fenced, withFence(write))
	mux.Handle(plain, write)
	r.Server = httptest.NewServer(mux)
	t.Cleanup(r.Close)
	return r
}

func tokenOf(t *testing.T, r *http.Request) fence.Token {
	t.Helper()
	token, err := fence.Parse(r.Header.Get(httpfence.Header))
	if err != nil {
		t.Errorf("token: %v", err)
	}
	return token
}

func (r *resource) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until seen returns true, which is called with mu held.
func (r *resource) await(ctx context.Context, t *testing.T, seen func() bool) {
	t.Helper()
	for {
		r.mu.Lock()
		ok, changed := seen(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			require.FailNow(t, "the stale write has not arrived")
		}
	}
}

// check waits for the stale write and checks that the fence has refused it, and nothing else, and that the twin has
// accepted it.
func (r *resource) check(ctx context.Context, t *testing.T, stale fence.Token) {
	t.Helper()
	r.await(ctx, t, func() bool { return len(r.refused) > 0 && !slices.IsSorted(r.accepted[plain]) })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, token := range r.refused {
		require.Equal(t, stale, token, "only stale writes are refused")
	}
	require.True(t, slices.IsSorted(r.accepted[fenced]), "a stale write was accepted: %v", r.accepted[fenced])
	require.NotEmpty(t, r.accepted[fenced])
	require.False(t, slices.IsSorted(r.accepted[plain]), "no stale write has arrived: %v", r.accepted[plain])
}

// writer writes to a resource and its twin.
type writer struct {
	url    string
	client *http.Client
}

func newWriter(url string) (*writer, error) {
	// One connection per request, so that the two writes do not wait for each other.
	base := &http.Transport{DisableKeepAlives: true}
	transport, err := httpfence.NewTransport(base, strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil, err
	}
	return &writer{url, &http.Client{Transport: transport}}, nil
}

// write sends both writes at once and returns their statuses. The end of the handle does not cancel them.
func (w *writer) write(ctx context.Context, token fence.Token) (status map[string]int, err error) {
	ctx = fence.NewContext(ctx, token)
	paths := []string{fenced, plain}
	codes, errs := make([]int, len(paths)), make([]error, len(paths))
	var wg sync.WaitGroup
	for i, path := range paths {
		wg.Go(func() { codes[i], errs[i] = w.post(ctx, path) })
	}
	wg.Wait()
	status = make(map[string]int)
	for i, path := range paths {
		if errs[i] != nil {
			return nil, errs[i]
		}
		status[path] = codes[i]
	}
	return status, nil
}

func (w *writer) post(ctx context.Context, path string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader("x"))
	if err != nil {
		return 0, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, err
}
