package httpfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestMiddleware_wire(t *testing.T) {
	fencetest.Wire{Missing: httpfence.ErrMissing, Start: start}.Run(t)
}

// wire is a server with a client that sends it tokens.
type wire struct {
	t       *testing.T
	handler http.Handler
	client  *http.Client
	url     string
}

func start(t *testing.T, s fencetest.Server) fencetest.Client {
	t.Helper()
	opts := httpfence.Options{Writes: func(*http.Request) bool { return !s.ReadOnly }}
	named := func(r *http.Request) string { return r.Header.Get("Resource") }
	if !s.Atomic {
		opts.CheckRead = s.CheckRead
	}
	middleware, err := httpfence.NewMiddleware(named, s.Check, opts)
	if s.Atomic {
		middleware, err = httpfence.NewAtomicMiddleware(named, s.Guard, opts)
	}
	require.NoError(t, err)
	handler := middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpfence.Error(w, s.Handle(r.Context()))
	}))
	server := serve(t, handler)
	return &wire{t, handler, client(t, server), server.URL}
}

func (w *wire) Send(ctx context.Context, resource string, set fencetest.Set) error {
	r := post(ctx, w.t, w.url)
	r.Header.Set("Resource", resource)
	r.Header[httpfence.Header], r.Header[httpfence.ReadHeader], r.Header[httpfence.LockHeader] = set.Write, set.Read, set.Lock
	return w.outcome(w.client.Do(r))
}

func (w *wire) ServeIn(server, client context.Context) error {
	transport, err := httpfence.NewTransport(tripper(func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		w.handler.ServeHTTP(recorder, r.WithContext(server))
		return recorder.Result(), nil
	}), "server")
	require.NoError(w.t, err)
	r := post(client, w.t, "http://server")
	r.Header.Set("Resource", "orders")
	return w.outcome(transport.RoundTrip(r))
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *wire) outcome(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	err = httpfence.ReadError(resp)
	body, readErr := io.ReadAll(resp.Body)
	require.NoError(w.t, errors.Join(readErr, resp.Body.Close()))
	if resp.StatusCode == http.StatusOK {
		return err
	}
	if kind := problemType(w.t, resp, string(body)); kind == "about:blank" {
		err = map[int]error{
			http.StatusInternalServerError: fencetest.ErrNoResource,
			http.StatusBadRequest:          fencetest.ErrLongResource,
			http.StatusServiceUnavailable:  fencetest.ErrUnchecked,
		}[resp.StatusCode]
	}
	return errors.Join(err, errors.New(string(body)))
}

// orders names one resource for every request.
func orders(*http.Request) string { return "orders" }

func atomicly(t *testing.T, g *fence.Guard, opts httpfence.Options) func(http.Handler) http.Handler {
	t.Helper()
	m, err := httpfence.NewAtomicMiddleware(orders, g, opts)
	require.NoError(t, err)
	return m
}

func serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// problemType checks a problem of RFC 9457 and returns its type.
func problemType(t *testing.T, resp *http.Response, body string) string {
	t.Helper()
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	var members map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &members))
	require.InDelta(t, resp.StatusCode, members["status"], 0)
	require.NotEmpty(t, members["title"])
	kind, _ := members["type"].(string)
	return kind
}

// client returns a client that sends tokens to the server.
func client(t *testing.T, server *httptest.Server) *http.Client {
	t.Helper()
	transport, err := httpfence.NewTransport(nil, server.Listener.Addr().String())
	require.NoError(t, err)
	return &http.Client{Transport: transport}
}

func post(ctx context.Context, t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("an order"))
	require.NoError(t, err)
	return r
}

// By default every method writes but GET, HEAD and OPTIONS. To those that do not write, a cache must not answer with the
// response to another holder, nor of another lock: the request may be a claim.
func TestMiddleware_methods(t *testing.T) {
	middleware, err := httpfence.NewMiddleware(orders, new(fence.Guard).CheckContext, httpfence.Options{})
	require.NoError(t, err)
	answer := func(method string) *http.Response {
		w := httptest.NewRecorder()
		middleware(nil).ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		return w.Result()
	}
	vary := []string{httpfence.Header, httpfence.ReadHeader, httpfence.LockHeader}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		resp := answer(method)
		require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s reaches the handler, which is nil", method)
		require.Equal(t, vary, resp.Header.Values("Vary"), "whether it has a token or not")
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "MKCOL"} {
		resp := answer(method)
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
	resp, _ := request(t.Context(), middleware(nil), 54, nil)
	require.Equal(t, http.StatusTeapot, resp.StatusCode)
	require.ErrorIs(t, seen, errStore)
}

func TestNewMiddleware_namesWhatIsWrong(t *testing.T) {
	g, none := new(fence.Guard), httpfence.Options{}
	of := func(_ any, err error) error { return err }
	for want, err := range map[string]error{
		"resource is nil, want a function":                      of(httpfence.NewMiddleware(nil, g.CheckContext, none)),
		"check is nil, want a function":                         of(httpfence.NewMiddleware(orders, nil, none)),
		"guard is nil, want a *fence.Guard":                     of(httpfence.NewAtomicMiddleware(orders, nil, none)),
		"Options.MaxBody is -1, want 1 or more, or 0 for 1 MiB": of(httpfence.NewAtomicMiddleware(orders, g, httpfence.Options{MaxBody: -1})),
		"Options.CheckRead is set, want nil: NewAtomicMiddleware checks with its guard": of(
			httpfence.NewAtomicMiddleware(orders, g, httpfence.Options{CheckRead: g.CheckReadContext})),
	} {
		require.EqualError(t, err, "httpfence: "+want)
	}
}

// A request whose body is too large or breaks off does not reach the handler and raises no mark.
func TestNewAtomicMiddleware_readsTheBodyFirst(t *testing.T) {
	var g fence.Guard
	var got []byte
	handler := atomicly(t, &g, httpfence.Options{MaxBody: 8})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
	}))
	for status, body := range map[int]io.Reader{
		http.StatusRequestEntityTooLarge: strings.NewReader("an order."),
		http.StatusBadRequest:            iotest.ErrReader(io.ErrUnexpectedEOF),
	} {
		resp, text := request(t.Context(), handler, 54, body)
		require.Equal(t, status, resp.StatusCode)
		require.Equal(t, "about:blank", problemType(t, resp, text))
		require.Nil(t, got)
		require.Empty(t, g.Marks())
	}
	resp, _ := request(t.Context(), handler, 54, strings.NewReader("an order"))
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "an order", string(got))
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
// before the handler's write, so no such handler runs, also behind two muxes.
func TestNewAtomicMiddleware_timeoutHandlerInside(t *testing.T) {
	slow := http.TimeoutHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it has run") }), time.Second, "")
	inner, outer := http.NewServeMux(), http.NewServeMux()
	inner.Handle("POST /", slow)
	outer.Handle("/", inner)
	for _, h := range []http.Handler{slow, outer} {
		resp, _ := request(t.Context(), atomicly(t, new(fence.Guard), httpfence.Options{})(h), 41, nil)
		require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
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
