// Package wire is shared by httpfence and grpcfence: it converts a token and the name of its lock to the values of
// three fields, headers or metadata, and back.
package wire

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

// Token is what one request carries.
type Token struct {
	Write fence.Token     // 0 if it is not a writer's
	Read  fence.ReadToken // 0 if it is not a reader's
	Lock  string          // "" if it came without a name
}

// In returns a context that carries t and hides the token and the name of ctx. Without a token it returns ctx.
func (t Token) In(ctx context.Context) context.Context {
	switch {
	case t.Write != 0:
		ctx = fence.NewContext(ctx, t.Write)
	case t.Read != 0:
		ctx = fence.NewReadContext(ctx, t.Read)
	default:
		return ctx
	}
	if t.Lock != "" {
		ctx = fence.WithLock(ctx, t.Lock)
	}
	return ctx
}

// Parse returns the token of a field, which must have exactly one value. An error names the field by its kind, such as
// "header", and its name.
func Parse(kind, name string, values []string) (fence.Token, error) {
	if len(values) != 1 {
		return 0, fmt.Errorf("%w: %s %s has %d values, want 1", fence.ErrInvalidToken, kind, name, len(values))
	}
	return fence.Parse(values[0])
}

// Carried returns the token that the three fields carry, a writer's or a reader's, with the name of its lock.
func Carried(kind string, names [3]string, values [3][]string) (t Token, err error) {
	if t.Lock, err = DecodeLock(values[2]); err != nil {
		return Token{}, err
	}
	switch writes, reads := len(values[0]) > 0, len(values[1]) > 0; {
	case writes && reads:
		err = fmt.Errorf("%w: %s %s and %s are both set, want one", fence.ErrInvalidToken, kind, names[0], names[1])
	case writes:
		t.Write, err = Parse(kind, names[0], values[0])
	case reads:
		var read fence.Token
		read, err = Parse(kind, names[1], values[1])
		t.Read = fence.ReadToken(read)
	case t.Lock != "": // no client sends this: something on the way has dropped the token
		err = fmt.Errorf("%w: %s %s is set and neither %s nor %s, want one", fence.ErrInvalidToken, kind, names[2], names[0], names[1])
	}
	return t, err
}

// Fields are the values for a writer's token, a reader's and the name of the lock, each "" if it is not sent.
type Fields [3]string

// FieldsOf returns the fields for the token that ctx carries. The error matches [fence.ErrInvalidToken] if its lock has
// a name that no resource can remember.
func FieldsOf(ctx context.Context) (f Fields, err error) {
	if token, ok := fence.FromContext(ctx); ok {
		f[0] = token.String()
	} else if token, ok := fence.ReadFromContext(ctx); ok {
		f[1] = token.String()
	}
	lock, err := admission.Lock(ctx)
	f[2] = EncodeLock(lock)
	return f, err
}

// HasToken reports whether there is a token to be sent.
func (f Fields) HasToken() bool { return f[0] != "" || f[1] != "" }

// Allows reports whether the caller may have set these values for a field: none, or exactly the value that is sent. Any
// other value contradicts the token in the context.
func (f Fields) Allows(field int, set []string) bool {
	return len(set) == 0 || f[field] != "" && len(set) == 1 && set[0] == f[field]
}

// Text names what is sent, for an error.
func (f Fields) Text(names [3]string) string {
	var parts []string
	for i, value := range f {
		if value != "" {
			parts = append(parts, value+" for "+names[i])
		}
	}
	return strings.Join(parts, " and ")
}

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
