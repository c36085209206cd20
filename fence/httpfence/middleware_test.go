package httpfence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// By default every method writes but GET, HEAD and OPTIONS. To those that do not write, a cache must not answer with the
// response to another holder, nor of another lock: the request may be a claim.
func TestMiddleware_methods(t *testing.T) {
	middleware, err := httpfence.NewMiddleware(orders, new(fence.Guard).CheckContext, httpfence.Options{})
	require.NoError(t, err)
	server := serve(t, middleware(nil))
	vary := []string{httpfence.Header, httpfence.ReadHeader, httpfence.LockHeader}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		resp, _ := send(t, method, server.URL, "")
		require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s reaches the handler, which is nil", method)
		require.Equal(t, vary, resp.Header.Values("Vary"), "whether it has a token or not")
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "MKCOL"} {
		resp, _ := send(t, method, server.URL, "")
		require.Equal(t, http.StatusPreconditionRequired, resp.StatusCode, method)
		require.Empty(t, resp.Header.Values("Vary"))
	}
}

func TestOptions_Refuse(t *testing.T) {
	errStore := errors.New("dial 10.0.0.7: refused")
	var seen error
	middleware, err := httpfence.NewMiddleware(orders,
		func(context.Context, string, fence.Token) error { return errStore },
		httpfence.Options{Refuse: func(w http.ResponseWriter, _ *http.Request, err error) {
			seen = err
			w.WriteHeader(http.StatusTeapot)
		}})
	require.NoError(t, err)
	resp, _ := send(t, http.MethodPost, serve(t, middleware(nil)).URL, "", "54")
	require.Equal(t, http.StatusTeapot, resp.StatusCode)
	require.ErrorIs(t, seen, errStore)
}

func TestNewMiddleware_namesWhatIsWrong(t *testing.T) {
	check := new(fence.Guard).CheckContext
	_, err := httpfence.NewMiddleware(nil, check, httpfence.Options{})
	require.EqualError(t, err, "httpfence: resource is nil, want a function")
	_, err = httpfence.NewMiddleware(orders, nil, httpfence.Options{})
	require.EqualError(t, err, "httpfence: check is nil, want a function")
	_, err = httpfence.NewAtomicMiddleware(nil, new(fence.Guard), httpfence.Options{})
	require.EqualError(t, err, "httpfence: resource is nil, want a function")
	_, err = httpfence.NewAtomicMiddleware(orders, nil, httpfence.Options{})
	require.EqualError(t, err, "httpfence: guard is nil, want a *fence.Guard")
	_, err = httpfence.NewAtomicMiddleware(orders, new(fence.Guard), httpfence.Options{MaxBody: -1})
	require.EqualError(t, err, "httpfence: Options.MaxBody is -1, want 1 or more, or 0 for 1 MiB")
	g := new(fence.Guard)
	_, err = httpfence.NewAtomicMiddleware(orders, g, httpfence.Options{CheckRead: g.CheckReadContext})
	require.EqualError(t, err, "httpfence: Options.CheckRead is set, want nil: NewAtomicMiddleware checks with its guard")
}

func TestNewAtomicMiddleware_boundsTheBody(t *testing.T) {
	var g fence.Guard
	var got string
	server := serve(t, atomicly(t, &g, httpfence.Options{MaxBody: 8})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			got = string(body)
			if err != nil {
				t.Error(err)
			}
		})))
	resp, body := send(t, http.MethodPost, server.URL, "an order.", "54")
	requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "about:blank")
	require.Empty(t, got)
	require.Empty(t, g.Marks(), "a request that did not arrive whole raises no mark")

	resp, _ = send(t, http.MethodPost, server.URL, "an order", "54")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "an order", got)
}

func TestNewAtomicMiddleware_brokenBody(t *testing.T) {
	var g fence.Guard
	handler := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the handler has run")
	}))
	resp, body := request(t.Context(), handler, 54, iotest.ErrReader(io.ErrUnexpectedEOF))
	requireProblem(t, resp, body, http.StatusBadRequest, "about:blank")
	require.Empty(t, g.Marks())
}

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
