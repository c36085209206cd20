package wire

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

const want = `want UTF-8 in which "%" and two upper-case hex digits stand for each byte but A-Z, a-z, 0-9 and "-._~/"`

// EncodeLock writes a name: bytes other than letters, digits and "-._~/" become "%" and two upper-case hex digits. So
// the text has no control characters, no space that a proxy trims, and no comma, with which proxies join two values.
func EncodeLock(lock string) string { return unescaped.Replace(url.QueryEscape(lock)) }

// unescaped turns the form of a query into that of a header: a query has "+" for a space and escapes "/".
var unescaped = strings.NewReplacer("+", "%20", "%2F", "/")

// DecodeLock reads the one spelling of a name that EncodeLock writes. For several values, any other text, and a name
// that [fence.CheckLock] refuses, it returns an error that matches [fence.ErrInvalidToken]. Without a value there is no
// name: "".
func DecodeLock(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", fmt.Errorf("%w: its lock's name has %d values, want 1", fence.ErrInvalidToken, len(values))
	}
	text := values[0]
	lock, err := url.PathUnescape(text)
	if err != nil || EncodeLock(lock) != text {
		return "", fmt.Errorf("%w: its lock's name is %s, %s", fence.ErrInvalidToken, clip.Quote(text), want)
	}
	if err := fence.CheckLock(lock); err != nil {
		return "", err
	}
	return lock, nil
}
