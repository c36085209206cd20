package httpfence

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/leasefence/leasefence/fence/internal/wire"
)

// Transport is an [http.RoundTripper] that sends the token of each request's context in the header Fencing-Token, or in
// Fencing-Read-Token if it is that of a read lock, and the name of its lock in Fencing-Lock, if the context has one;
// see [fence.LockFromContext]. Make one with [NewTransport].
type Transport struct {
	base  http.RoundTripper
	hosts map[string]bool // lower case; with a port if it was given
}

// NewTransport returns a Transport that sends requests through base and adds tokens for the given hosts only. A nil
// base is [http.DefaultTransport].
//
// A token is meaningful only at the resources of its lock. Elsewhere it would raise the marks of another series of
// tokens and fence the rightful holders. A redirect, or a handler that passes its context on, can send a request
// elsewhere. So there must be at least one host. A host is "host" or "host:port" as in a URL, in any case; without a
// port it is the standard port of the URL's scheme. The error names the host.
func NewTransport(base http.RoundTripper, hosts ...string) (*Transport, error) {
	if base == nil {
		base = http.DefaultTransport
	}
	if len(hosts) == 0 {
		return nil, errors.New("httpfence: hosts is empty, want the hosts that tokens are sent to")
	}
	t := &Transport{base: base, hosts: make(map[string]bool, len(hosts))}
	for _, host := range hosts {
		u, err := url.Parse("//" + host)
		bare := err == nil && strings.Contains(u.Hostname(), ":") && host[0] != '[' // IPv6 without brackets
		if err != nil || u.Hostname() == "" || u.Host != host || bare {
			return nil, fmt.Errorf("httpfence: hosts has %q, want host or host:port", host)
		}
		name := strings.ToLower(u.Hostname())
		if u.Port() != "" {
			name = net.JoinHostPort(name, u.Port())
		}
		t.hosts[name] = true
	}
	return t, nil
}

// RoundTrip sends a copy of r with the token of r's context and the name of its lock, and does not change r. If the
// context has no token, or if the host of r's URL is not one of the Transport's, it sends r without a token and a name.
// RoundTrip decides this again after each redirect.
//
// RoundTrip sends a header Fencing-Token, Fencing-Read-Token or Fencing-Lock that the caller has set to any host in the
// caller's URL, but removes it when a redirect leads to a host that is not one of the Transport's. At one of the
// Transport's hosts, if the context carries a token, the header must have the value that RoundTrip would send:
// otherwise RoundTrip sends nothing, and the error matches [fence.ErrInvalidToken]. The same happens if
// [fence.CheckLock] refuses the name in the context.
//
// RoundTrip returns a response of any status unchanged, as [http.RoundTripper] requires; use [ReadError] to detect a
// refusal. It is safe for concurrent use.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t == nil || t.base == nil {
		return nil, unsent(r, errors.New("Transport is nil or zero, want one created by NewTransport"))
	}
	listed := t.listed(r.URL)
	var add wire.Fields
	if listed {
		var err error
		add, err = wire.Outgoing(r.Context(), "header", headers, func(header string) []string { return values(r.Header, header) })
		if err != nil {
			return nil, unsent(r, err)
		}
	}
	sent := r.Clone(r.Context())
	if sent.Header == nil {
		sent.Header = make(http.Header)
	}
	for i, header := range headers {
		switch {
		case add[i] != "":
			sent.Header.Set(header, add[i])
		case !listed && r.Response != nil:
			// r follows a redirect, and net/http has copied the caller's headers.
			maps.DeleteFunc(sent.Header, func(key string, _ []string) bool { return strings.EqualFold(key, header) })
		}
	}
	return t.base.RoundTrip(sent)
}

// values returns what a caller has set, in whatever case: [http.Header.Values] sees only keys in the standard case, and
// net/http sends the others too.
func values(h http.Header, header string) (set []string) {
	for key, all := range h {
		if strings.EqualFold(key, header) {
			set = append(set, all...)
		}
	}
	return set
}

// unsent is the error for a request that is not sent. A RoundTripper always closes the body.
func unsent(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return fmt.Errorf("httpfence: %w", err)
}

// headers are those of [wire.Fields].
var headers = [...]string{Header, ReadHeader, LockHeader}

// CloseIdleConnections calls the method of the base, if it has one. [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) listed(u *url.URL) bool {
	if u == nil {
		return false // the base returns the error
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
