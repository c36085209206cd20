package httpfence_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// recorder is a base that records its requests.
type recorder struct {
	sent []*http.Request
	idle int
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.sent = append(r.sent, req)
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
}

func (r *recorder) CloseIdleConnections() { r.idle++ }

func roundTrip(t *testing.T, transport *httpfence.Transport, r *http.Request) {
	t.Helper()
	resp, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}

// tokens are the tokens and names of locks that a server was sent, request by request.
func tokens(t *testing.T, answer http.HandlerFunc) (*httptest.Server, *[][]string) {
	t.Helper()
	var got [][]string
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, slices.Concat(r.Header[httpfence.Header], r.Header[httpfence.ReadHeader], r.Header[httpfence.LockHeader]))
		answer(w, r)
	}))
	return server, &got
}

func TestTransport_sendsItToItsHostsOnly(t *testing.T) {
	for _, c := range []struct {
		hosts []string
		url   string
		sent  bool
	}{
		{[]string{"store.example"}, "http://store.example/a", true},
		{[]string{"store.example"}, "https://store.example/a", true},
		{[]string{"store.example"}, "https://store.example:443/a", true},
		{[]string{"Store.example"}, "http://STORE.example", true},
		{[]string{"store.example"}, "http://store.example:443", false},
		{[]string{"store.example"}, "https://store.example:8443", false},
		{[]string{"store.example"}, "http://a.store.example", false},
		{[]string{"store.example"}, "http://store.example.org", false},
		{[]string{"store.example"}, "http://store.example@other.example", false},
		{[]string{"store.example:443"}, "https://store.example", true},
		{[]string{"store.example:443"}, "http://store.example", false},
		{[]string{"store.example:8443"}, "https://store.example:8443", true},
		{[]string{"store.example:8443"}, "https://store.example", false},
		{[]string{"a", "b:1"}, "http://b:1", true},
		{[]string{"[::1]"}, "http://[::1]", true},
		{[]string{"[::1]:80"}, "http://[::1]", true},
		{[]string{"[::1]"}, "http://[::2]", false},
	} {
		var base recorder
		transport, err := httpfence.NewTransport(&base, c.hosts...)
		require.NoError(t, err)
		r := post(fencetest.Verb{}.Context(t.Context(), 54, "accounts"), t, c.url)
		roundTrip(t, transport, r)
		require.Empty(t, r.Header, "the caller's request stays as it was")
		require.Equal(t, c.sent, base.sent[0].Header.Get(httpfence.Header) == "54", "%v: %s", c.hosts, c.url)
		require.Equal(t, c.sent, base.sent[0].Header.Get(httpfence.LockHeader) == "accounts", "%v: %s", c.hosts, c.url)
		roundTrip(t, transport, post(fence.NewReadContext(t.Context(), 54), t, c.url))
		require.Equal(t, c.sent, base.sent[1].Header.Get(httpfence.ReadHeader) == "54", "%v: %s", c.hosts, c.url)
	}
}

// net/http follows a redirect through the same transport, and copies the caller's headers.
func TestTransport_redirectToAnotherHost(t *testing.T) {
	for name, c := range map[string]struct {
		header string          // set by the caller
		ctx    context.Context //nolint:containedctx // a row
		sent   []string
	}{
		"context":          {"", fence.NewContext(t.Context(), 54), []string{"54"}},
		"reader's context": {"", fence.NewReadContext(t.Context(), 54), []string{"54"}},
		"lock's context":   {"", fencetest.Verb{}.Context(t.Context(), 54, "accounts"), []string{"54", "accounts"}},
		"header":           {httpfence.Header, t.Context(), []string{"54"}},
		"reader's header":  {httpfence.ReadHeader, t.Context(), []string{"54"}},
		"lock's header":    {httpfence.LockHeader, t.Context(), []string{"54"}},
		"in another case":  {"fencing-Token", t.Context(), []string{"54"}},
	} {
		t.Run(name, func(t *testing.T) {
			other, gotOther := tokens(t, func(http.ResponseWriter, *http.Request) {})
			var home *httptest.Server
			home, gotHome := tokens(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/away":
					http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
				case "/along":
					http.Redirect(w, r, home.URL+"/end", http.StatusTemporaryRedirect)
				}
			})
			client := client(t, home)
			for _, path := range []string{"/away", "/along"} {
				r := post(c.ctx, t, home.URL+path)
				if c.header != "" {
					r.Header[c.header] = []string{"54"}
				}
				resp, err := client.Do(r)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, http.StatusOK, resp.StatusCode)
			}
			require.Equal(t, [][]string{c.sent, c.sent, c.sent}, *gotHome, "/away, /along, /end")
			require.Equal(t, [][]string{nil}, *gotOther)
		})
	}
}

// RoundTrip sends nothing to its hosts if the context or a header of the caller is wrong; the suite of wires has all
// such cases. To other hosts it sends the caller's header as it is.
func TestTransport_headerOfTheCaller(t *testing.T) {
	var base recorder
	transport, err := httpfence.NewTransport(&base, "store.example")
	require.NoError(t, err)
	body := &closer{Reader: strings.NewReader("an order")}
	r := post(fencetest.Verb{}.Context(t.Context(), 54, ""), t, "http://store.example")
	r.Body = body
	r.Header.Set(httpfence.LockHeader, "report")
	_, err = transport.RoundTrip(r) //nolint:bodyclose // there is no response
	require.EqualError(t, err, "httpfence: fence: invalid token: its lock's name has 0 bytes, want 1 to 2304")
	require.True(t, body.closed, "a RoundTripper closes the body, on errors too")
	r.URL.Host = "other.example"
	roundTrip(t, transport, r)
	require.Equal(t, http.Header{httpfence.LockHeader: {"report"}}, base.sent[0].Header)
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

func TestTransport_asksItsBase(t *testing.T) {
	var base recorder
	transport, err := httpfence.NewTransport(&base, "store.example")
	require.NoError(t, err)

	r := post(fence.NewContext(t.Context(), 54), t, "http://store.example")
	r.Header = nil
	roundTrip(t, transport, r)
	require.Nil(t, r.Header)
	require.Equal(t, "54", base.sent[0].Header.Get(httpfence.Header))

	r.URL = nil
	roundTrip(t, transport, r) // the base decides about a missing URL
	(&http.Client{Transport: transport}).CloseIdleConnections()
	require.Equal(t, 1, base.idle)
}

func TestNewTransport_namesTheHost(t *testing.T) {
	_, err := httpfence.NewTransport(nil)
	require.EqualError(t, err, "httpfence: hosts is empty, want the hosts that tokens are sent to")
	for _, host := range []string{"", ":80", "http://a", "a/", "a?b", "u@a", "::1", "a:b"} {
		_, err := httpfence.NewTransport(nil, "good.example", host)
		require.ErrorContains(t, err, "want host or host:port", "%q", host)
	}
}

func TestTransport_zero(t *testing.T) {
	for _, zero := range []*httpfence.Transport{nil, {}} {
		_, err := zero.RoundTrip(post(t.Context(), t, "http://127.0.0.1:1")) //nolint:bodyclose // there is no response
		require.EqualError(t, err, "httpfence: Transport is nil or zero, want one created by NewTransport")
	}
}
