package httpfence

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/leasefence/leasefence/fence"
)

// Header is the request header that carries the token, in the decimal form that [fence.Token.String] writes.
const Header = "Fencing-Token"

// ErrMissing says that a request that needs a token came without one. It is the caller's mistake, not a lost lock.
var ErrMissing = errors.New("httpfence: no fencing token")

// FromHeader returns the token of a request's header. There must be exactly one value, and [fence.Parse] must accept
// it: values that a proxy has joined with a comma are refused as well.
//
// The error matches [ErrMissing] if there is no value, and [fence.ErrInvalidToken] if there are several, or one that
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
