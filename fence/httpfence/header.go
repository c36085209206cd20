package httpfence

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/leasefence/leasefence/fence"
)

// Header is the request header that carries the token, in the decimal form that [fence.Token.String] writes.
const Header = "Fencing-Token"

// ErrMissing reports that a request that writes has no token. It is a mistake of the caller and not a lost lock.
var ErrMissing = errors.New("httpfence: no fencing token")

// FromHeader returns the token of a request's header. There must be exactly one value, and [fence.Parse] must accept
// it. Values that a proxy has joined with a comma are refused too.
//
// The error matches [ErrMissing] if there is no value, and [fence.ErrInvalidToken] if there are several values or if the value
// is empty or malformed.
func FromHeader(h http.Header) (fence.Token, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return 0, ErrMissing
	case 1:
		return fence.Parse(values[0])
	}
	return 0, fmt.Errorf("%w: header %s has %d values, want 1", fence.ErrInvalidToken, Header, len(values))
}
