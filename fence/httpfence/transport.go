package httpfence

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

// Transport is an [http.RoundTripper] that sends the token of each request's context in the header Fencing-Token.
// Make one with [NewTransport].
type Transport struct {
	base  http.RoundTripper
	hosts map[string]bool // lower case; with a port if it was given
}

// NewTransport returns a Transport that sends tokens to hosts and to nobody else, over base. If base is nil it is
// [http.DefaultTransport].
//
// A token means something only at the resources of its lock. Anywhere else it would raise the marks of another series
// and fence their rightful holders, and a request gets elsewhere easily: by a redirect, or because a handler passes
// its context on. So there must be a host, and each is "host" or "host:port", as in a URL; without a port it is the
// standard one of the URL's scheme. Case does not matter. Otherwise the error names the host.
func NewTransport(base http.RoundTripper, hosts ...string) (*Transport, error) {
	if base == nil {
		base = http.DefaultTransport
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("httpfence: hosts: none, want the hosts that tokens are sent to")
	}
	t := &Transport{base: base, hosts: make(map[string]bool, len(hosts))}
	for _, host := range hosts {
		u, err := url.Parse("//" + host)
		bare := err == nil && strings.Contains(u.Hostname(), ":") && host[0] != '[' // IPv6 without brackets
		if err != nil || u.Hostname() == "" || u.Host != host || bare {
			return nil, fmt.Errorf("httpfence: hosts: %q, want host or host:port", host)
		}
		name := strings.ToLower(u.Hostname())
		if u.Port() != "" {
			name = net.JoinHostPort(name, u.Port())
		}
		t.hosts[name] = true
	}
	return t, nil
}

// RoundTrip sends a copy of r with the token of r's context; r itself is left as it is. Without a token in the context,
// or if the host of r's URL is none of the Transport's, it sends r without one. The host decides after each redirect
// anew.
//
// A header Fencing-Token that the caller has set is sent as it is, to any host that the caller names, but never on
// by a redirect to a host that is none of the Transport's: there it is removed. If it differs from the token of the
// context, one of the two is a mistake: RoundTrip sends nothing and returns an error.
//
// A response of any status is returned as it came, as [http.RoundTripper] demands: see [ReadError] for a refusal.
// RoundTrip is safe for concurrent use.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	token, ok := fence.FromContext(r.Context())
	set := r.Header.Values(Header)
	switch listed := t.listed(r.URL); {
	case listed && ok && len(set) == 0:
		r = clone(r)
		r.Header.Set(Header, token.String())
	case listed && ok && (len(set) != 1 || set[0] != token.String()):
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it whatever happens; it was not read
		}
		return nil, fmt.Errorf("httpfence: header %s is set to %q, the context carries %d", Header, set, int64(token))
	case !listed && len(set) > 0 && r.Response != nil:
		// Response is that of the redirect, after which net/http has copied the caller's headers.
		r = clone(r)
		r.Header.Del(Header)
	}
	return t.base.RoundTrip(r)
}

// CloseIdleConnections does what it does at the base, if it can: [http.Client.CloseIdleConnections] asks for it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) listed(u *url.URL) bool {
	if u == nil {
		return false // the base says what is wrong
	}
	var standard string
	switch u.Scheme {
	case "http":
		standard = "80"
	case "https":
		standard = "443"
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" {
		port = standard
	}
	return port == standard && t.hosts[host] || t.hosts[net.JoinHostPort(host, port)]
}

func clone(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	return r
}
