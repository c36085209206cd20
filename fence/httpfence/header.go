package httpfence

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

// Header is the request header that carries the token, in the decimal form that [fence.Token.String] writes.
const Header = "Fencing-Token"

// ReadHeader is [Header] for the token of a read lock. A server that knows only writers finds no token in such a request and
// refuses it if it writes. A request has one of the two headers.
const ReadHeader = "Fencing-Read-Token"

// LockHeader is the request header that carries the name of the lock that the token belongs to, beside [Header] or [ReadHeader];
// see [fence.WithLock]. In the name, "%" and two upper-case hex digits stand for each byte but A-Z, a-z, 0-9 and "-._~/". A token
// may come without it. A server that does not know it takes the token of any lock.
const LockHeader = "Fencing-Lock"

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

// LockFromHeader returns the name of the lock in a request's header, or "" if there is none. The error matches
// [fence.ErrInvalidToken] if there are several values, or if the value is empty, is not written as [LockHeader] says or is a name
// that [fence.CheckLock] refuses.
func LockFromHeader(h http.Header) (string, error) { return wire.DecodeLock(h.Values(LockHeader)) }

func parse(name string, values []string) (fence.Token, error) {
	switch len(values) {
	case 0:
		return 0, ErrMissing
	case 1:
		return fence.Parse(values[0])
	}
	return 0, fmt.Errorf("%w: header %s has %d values, want 1", fence.ErrInvalidToken, name, len(values))
}

// carried returns the token of a request, a writer's or a reader's, and the name of its lock.
func carried(h http.Header) (t wire.Token, err error) {
	if t.Lock, err = LockFromHeader(h); err != nil {
		return wire.Token{}, err
	}
	writes, reads := len(h.Values(Header)) > 0, len(h.Values(ReadHeader)) > 0
	switch {
	case writes && reads:
		err = fmt.Errorf("%w: headers %s and %s are both set, want one", fence.ErrInvalidToken, Header, ReadHeader)
	case writes:
		t.Write, err = FromHeader(h)
	case reads:
		t.Read, err = ReadFromHeader(h)
	case t.Lock != "": // no client sends that: something between has lost the token
		err = fmt.Errorf("%w: header %s is set and neither %s nor %s, want one", fence.ErrInvalidToken, LockHeader, Header, ReadHeader)
	}
	return t, err
}
