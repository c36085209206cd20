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

func do(t *testing.T, client *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := client.Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
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
