package httpfence

import (
	"errors"
	"net/http"

	"github.com/leasefence/leasefence/fence/internal/wire"
)

// Header is the request header that carries the token, in the decimal form that [fence.Token.String] writes.
const Header = "Fencing-Token"

// ReadHeader is [Header] for the token of a read lock. A server that knows only writers finds no token in such a
// request and refuses it if it writes. A request has one of the two headers.
const ReadHeader = "Fencing-Read-Token"

// LockHeader is the request header that carries the name of the lock that the token belongs to, beside [Header] or
// [ReadHeader]; see [fence.WithLock]. In the name, "%" and two upper-case hex digits stand for each byte except A-Z,
// a-z, 0-9 and "-._~/". A token may come without it. A server that does not know it takes the token of any lock.
const LockHeader = "Fencing-Lock"

// ErrMissing reports that a request that writes has no token. It is a mistake of the caller and not a lost lock.
var ErrMissing = errors.New("httpfence: no fencing token")

// carried returns the token of a request, a writer's or a reader's, and the name of its lock.
func carried(h http.Header) (wire.Token, error) {
	var values [len(headers)][]string
	for i, header := range headers {
		values[i] = h.Values(header)
	}
	return wire.Carried("header", headers, values)
}
