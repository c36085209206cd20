package httpfence_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// request serves one request with a token, without a network, and returns the response and its body.
func request(ctx context.Context, h http.Handler, token fence.Token, body io.Reader) (*http.Response, string) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
	r.Header.Set(httpfence.Header, token.String())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

// http.TimeoutHandler answers while its handler still runs. Inside the middleware that would let in a newer token
// before the handler's write.
func TestNewAtomicMiddleware_timeoutHandlerInside(t *testing.T) {
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"directly": func(h http.Handler) http.Handler { return h },
		"behind two muxes": func(h http.Handler) http.Handler {
			inner, outer := http.NewServeMux(), http.NewServeMux()
			inner.Handle("POST /", h)
			outer.Handle("/", inner)
			return outer
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g fence.Guard
				claimed, late := make(chan struct{}), false
				slow := http.TimeoutHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					<-claimed
					late = true
				}), time.Second, "")
				resp, _ := request(t.Context(), atomicly(t, &g, httpfence.Options{})(wrap(slow)), 41, nil)
				require.NoError(t, g.Claim("orders", 54))
				close(claimed)
				synctest.Wait()
				require.False(t, late, "41 has written after the claim of 54")
				require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
			})
		})
	}
}

// Around the middleware http.TimeoutHandler answers in time, and a newer token waits until the handler has returned.
func TestNewAtomicMiddleware_timeoutHandlerOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g fence.Guard
		resume := make(chan struct{})
		fenced := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			<-resume
		}))
		resp, _ := request(t.Context(), http.TimeoutHandler(fenced, time.Second, ""), 41, nil)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)

		accepted := make(chan error, 1)
		go func() { accepted <- g.Claim("orders", 54) }()
		synctest.Wait()
		require.Empty(t, accepted, "41 may still write")
		close(resume)
		require.NoError(t, <-accepted)
	})
}

type reader func([]byte) (int, error)

func (f reader) Read(p []byte) (int, error) { return f(p) }

// A holder that is paused while it sends its body must not keep its successor out.
func TestNewAtomicMiddleware_doesNotWaitForABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where a successor that waits is a deadlock
		var g fence.Guard
		paused := reader(func([]byte) (int, error) {
			require.NoError(t, g.Claim("orders", 54))
			return 0, io.EOF
		})
		resp, _ := request(t.Context(), atomicly(t, &g, httpfence.Options{})(nil), 41, paused)
		require.ErrorIs(t, httpfence.ReadError(resp), fence.ErrStale)
	})
}
