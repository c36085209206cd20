// Package wire is shared by httpfence and grpcfence: it converts a token and the name of its lock to the values of
// three fields, headers or metadata, and back.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
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

// Carried returns the token that the three fields carry, a writer's or a reader's, with the name of its lock. values
// returns the values of a field.
func Carried(kind string, names [3]string, values func(name string) []string) (t Token, err error) {
	if t.Lock, err = DecodeLock(values(names[2])); err != nil {
		return Token{}, err
	}
	writers, readers := values(names[0]), values(names[1])
	switch writes, reads := len(writers) > 0, len(readers) > 0; {
	case writes && reads:
		err = fmt.Errorf("%w: %s %s and %s are both set, want one", fence.ErrInvalidToken, kind, names[0], names[1])
	case writes:
		t.Write, err = Parse(kind, names[0], writers)
	case reads:
		var read fence.Token
		read, err = Parse(kind, names[1], readers)
		t.Read = fence.ReadToken(read)
	case t.Lock != "": // no client sends this: something on the way has dropped the token
		err = fmt.Errorf("%w: %s %s is set and neither %s nor %s, want one", fence.ErrInvalidToken, kind, names[2], names[0], names[1])
	}
	return t, err
}

// Fields are the values for a writer's token, a reader's and the name of the lock, each "" for none.
type Fields [3]string

// Outgoing returns what a client adds to the values that its caller has set, so that they carry the token of ctx and the
// name of its lock. The error matches [fence.ErrInvalidToken] if no resource can remember the name, or if a value that is
// set contradicts the context.
func Outgoing(ctx context.Context, kind string, names [3]string, set func(name string) []string) (add Fields, err error) {
	var own Fields
	if token, ok := fence.FromContext(ctx); ok {
		own[0] = token.String()
	} else if token, ok := fence.ReadFromContext(ctx); ok {
		own[1] = token.String()
	} else {
		return add, nil
	}
	lock, err := admission.Lock(ctx)
	if err != nil {
		return add, err
	}
	own[2] = EncodeLock(lock)
	for i, name := range names {
		switch values := set(name); {
		case len(values) == 0:
			add[i] = own[i]
		case own[i] == "" || len(values) > 1 || values[0] != own[i]:
			return add, fmt.Errorf("%w: %s %s is set to %q, the context carries %s",
				fence.ErrInvalidToken, kind, name, values, own.text(names))
		}
	}
	return add, nil
}

// text names the values, for an error.
func (f Fields) text(names [3]string) string {
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

// maxResource bounds the name of a resource in a refusal: a store's names can have any length, and clients limit the
// size of a refusal that they read.
const maxResource = 4 << 10

// Kind is why a token was refused. Each wire has a code for each kind.
type Kind int

// The kinds.
const (
	None Kind = iota // not the refusal of a token
	Stale
	OtherLock
	Missing
	Invalid
)

// Refusal is the refusal of a token in the form to send.
type Refusal struct {
	Kind    Kind
	Text    string
	Members map[string]string // of Stale and OtherLock: the fields of the error that are not zero
}

// RefusalOf returns the refusal in err, with long names cut. It has nothing of the errors that wrap it. missing is the
// wire's error for a request without a token, names are those of its fields.
func RefusalOf(err, missing error, names [3]string) Refusal {
	switch {
	case errors.Is(err, fence.ErrStale):
		stale, _ := errors.AsType[*fence.StaleError](err)
		if stale == nil {
			return Refusal{Kind: Stale, Text: fence.ErrStale.Error()}
		}
		known := *stale
		known.Resource = clip.To(known.Resource, maxResource)
		return Refusal{Stale, known.Error(), members(map[string]any{
			"resource": known.Resource, "token": known.Token, "highest": known.Highest,
			"read": known.Read, "byReader": known.ByReader,
		})}
	case errors.Is(err, fence.ErrOtherLock):
		other, _ := errors.AsType[*fence.OtherLockError](err)
		if other == nil {
			return Refusal{Kind: OtherLock, Text: fence.ErrOtherLock.Error()}
		}
		known := *other
		known.Resource = clip.To(known.Resource, maxResource)
		known.Lock, known.Follows = clip.To(known.Lock, fence.MaxLock), clip.To(known.Follows, fence.MaxLock)
		return Refusal{OtherLock, known.Error(), members(map[string]any{
			"resource": known.Resource, "token": known.Token, "read": known.Read,
			"lock": known.Lock, "follows": known.Follows,
		})}
	case errors.Is(err, missing):
		return Refusal{Kind: Missing, Text: missing.Error() + ": want one value of " + names[0]}
	case errors.Is(err, fence.ErrInvalidToken):
		return Refusal{Kind: Invalid, Text: fence.ErrInvalidToken.Error() + ": want one value of " + names[0] + " or " + names[1] +
			", plain decimal, of an era that the resource accepts, and at most one of " + names[2] + ", percent-encoded"}
	}
	return Refusal{}
}

// Err returns the error of a received refusal. Missing or malformed members are zero in it: a refused holder must stop
// in any case.
func (k Kind) Err(members map[string]string, missing error) error {
	token := func(name string) fence.Token {
		t, _ := fence.Parse(members[name])
		return t
	}
	switch k {
	case Stale:
		return &fence.StaleError{
			Resource: members["resource"], Token: token("token"), Highest: token("highest"),
			Read: members["read"] == "true", ByReader: members["byReader"] == "true",
		}
	case OtherLock:
		return &fence.OtherLockError{
			Resource: members["resource"], Token: token("token"), Read: members["read"] == "true",
			Lock: members["lock"], Follows: members["follows"],
		}
	case Missing:
		return missing
	case Invalid:
		return fence.ErrInvalidToken
	default:
		return nil
	}
}

// members returns the text of the values that are not zero, as valid UTF-8: with another string the client would lose the
// whole refusal.
func members(values map[string]any) map[string]string {
	texts := map[string]string{}
	for name, value := range values {
		if !reflect.ValueOf(value).IsZero() {
			texts[name] = strings.ToValidUTF8(fmt.Sprint(value), "\uFFFD")
		}
	}
	return texts
}
