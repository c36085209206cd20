package httpfence_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

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

// send sends a request with the header's values as they are, and returns the response with its body read.
func send(t *testing.T, method, url, body string, tokens ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header[httpfence.Header] = tokens
	return do(t, http.DefaultClient, r)
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

// requireProblem checks the status and the type of a problem.
func requireProblem(t *testing.T, resp *http.Response, body string, status int, kind string) {
	t.Helper()
	require.Equal(t, status, resp.StatusCode, body)
	require.Equal(t, kind, problemType(t, resp, body))
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
