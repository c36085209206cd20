package httpfence

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/leasefence/leasefence/fence"
)

// Header is the request header that carries the token, in the decimal form that [fence.Token.String] writes.
const Header = "Fencing-Token"

// ReadHeader is [Header] for the token of a read lock. A server that knows only writers finds no token in such a request and
// refuses it if it writes. A request has one of the two headers.
const ReadHeader = "Fencing-Read-Token"

// ErrMissing reports that a request that writes has no token. It is a mistake of the caller and not a lost lock.
var ErrMissing = errors.New("httpfence: no fencing token")

// FromHeader returns the token of a request's header. There must be exactly one value, and [fence.Parse] must accept
// it. Values that a proxy has joined with a comma are refused too.
//
// The error matches [ErrMissing] if there is no value, and [fence.ErrInvalidToken] if there are several values or if the value
// is empty or malformed.
func FromHeader(h http.Header) (fence.Token, error) { return parse(Header, h.Values(Header)) }

// ReadFromHeader is [FromHeader] for [ReadHeader].
func ReadFromHeader(h http.Header) (fence.ReadToken, error) {
	t, err := parse(ReadHeader, h.Values(ReadHeader))
	return fence.ReadToken(t), err
}

func parse(name string, values []string) (fence.Token, error) {
	switch len(values) {
	case 0:
		return 0, ErrMissing
	case 1:
		return fence.Parse(values[0])
	}
	return 0, fmt.Errorf("%w: header %s has %d values, want 1", fence.ErrInvalidToken, name, len(values))
}

// tokens returns the token of a request, a writer's or a reader's. Both are 0 if it has none.
func tokens(h http.Header) (t fence.Token, read fence.ReadToken, err error) {
	writes, reads := len(h.Values(Header)) > 0, len(h.Values(ReadHeader)) > 0
	switch {
	case writes && reads:
		err = fmt.Errorf("%w: headers %s and %s are both set, want one", fence.ErrInvalidToken, Header, ReadHeader)
	case writes:
		t, err = FromHeader(h)
	case reads:
		read, err = ReadFromHeader(h)
	}
	return t, read, err
}
