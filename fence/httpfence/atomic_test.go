package httpfence_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// overtake has the handler of token 41 stop between the check and its write, sends 54 meanwhile, and returns the
// tokens in the order of their writes.
func overtake(t *testing.T, middleware func(http.Handler) http.Handler, store func(fence.Token) error) []fence.Token {
	t.Helper()
	var (
		mu      sync.Mutex
		writes  []fence.Token
		checked = make(chan struct{})
		resume  = make(chan struct{})
	)
	server := serve(t, middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := fence.FromContext(r.Context())
		if token == 41 {
			close(checked)
			<-resume
		}
		if httpfence.Error(w, store(token)) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		writes = append(writes, token)
	})))
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = send(t, http.MethodPost, server.URL, "", "41") })
	<-checked
	newer := make(chan struct{})
	wg.Go(func() {
		defer close(newer)
		_, _ = send(t, http.MethodPost, server.URL, "", "54")
	})
	// Either the newer one passes, or it waits: the latter can only be seen by giving it time.
	select {
	case <-newer:
	case <-time.After(50 * time.Millisecond):
	}
	close(resume)
	wg.Wait()
	return writes
}

func TestNewAtomicMiddleware_cannotBeOvertaken(t *testing.T) {
	noStore := func(fence.Token) error { return nil }
	require.Equal(t, []fence.Token{41, 54}, overtake(t, atomicly(t, new(fence.Guard), httpfence.Options{}), noStore))
}

// The gap of a middleware that only checks first, and how the store closes it.
func TestNewMiddleware_theStoreDecides(t *testing.T) {
	noStore := func(fence.Token) error { return nil }
	require.Equal(t, []fence.Token{54, 41}, overtake(t, early(t, new(fence.Guard), httpfence.Options{}), noStore),
		"the stale write came last: this is what the doc warns of")

	var store fence.Guard
	decide := func(token fence.Token) error { return store.Do("orders", token, func() error { return nil }) }
	require.Equal(t, []fence.Token{54}, overtake(t, early(t, new(fence.Guard), httpfence.Options{}), decide))
}

// A holder that is paused while it sends its body must not keep its successor out.
func TestNewAtomicMiddleware_doesNotWaitForABody(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Claim("orders", 41))
	arrived := make(chan struct{})
	fenced := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(httpfence.Header) == "41" {
			close(arrived)
		}
		fenced.ServeHTTP(w, r)
	}))

	paused, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, paused.Close()) }()
	_, err = fmt.Fprintf(paused, "POST / HTTP/1.1\r\nHost: x\r\nFencing-Token: 41\r\nContent-Length: 8\r\n\r\nan ")
	require.NoError(t, err)
	<-arrived

	resp, _ := send(t, http.MethodPost, server.URL, "", "54")
	require.Equal(t, http.StatusOK, resp.StatusCode)

	_, err = fmt.Fprint(paused, "order")
	require.NoError(t, err)
	late, err := http.ReadResponse(bufio.NewReader(paused), nil)
	require.NoError(t, err)
	require.ErrorIs(t, httpfence.ReadError(late), fence.ErrStale)
	require.NoError(t, late.Body.Close())
}

// The handlers of a resource run one at a time, and never an older one after a newer one.
func TestNewAtomicMiddleware_keepsTheOrder(t *testing.T) {
	var (
		g      fence.Guard
		wg     sync.WaitGroup
		writes []fence.Token // without a lock of its own: the race detector watches it too
	)
	handler := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token, _ := fence.FromContext(r.Context())
		runtime.Gosched()
		writes = append(writes, token)
	}))
	const writers, rounds = 4, 200
	for first := range writers {
		wg.Go(func() {
			for i := range rounds {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
				r.Header.Set(httpfence.Header, fence.Token(1+first+writers*i).String())
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, writes)
	require.IsIncreasing(t, writes)
	require.Equal(t, g.Marks()["orders"], writes[len(writes)-1])
}

// A handler that panics leaves the resource free and the mark raised.
func TestNewAtomicMiddleware_handlerPanics(t *testing.T) {
	var g fence.Guard
	handler := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	r.Header.Set(httpfence.Header, "54")
	require.PanicsWithError(t, http.ErrAbortHandler.Error(), func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
	require.ErrorIs(t, g.Check("orders", 53), fence.ErrStale)
	require.NoError(t, g.Check("orders", 55))
}
