package httpfence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

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
