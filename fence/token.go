package fence

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/leasefence/leasefence/internal/clip"
)

const (
	revisionBits = 48
	maxRevision  = 1<<revisionBits - 1
	maxEra       = 1<<(63-revisionBits) - 1 // one bit less than an uint16: a token stays positive

	legalToken = "plain decimal 1 to 9223372036854775807, low 48 bits not 0"
)

// ErrInvalidToken reports that a token is zero, negative or malformed, or that its era or revision is out of range. It
// is a mistake of the caller and not a lost lock.
var ErrInvalidToken = errors.New("fence: invalid token")

// Token identifies a grant of a lock at the resource: era<<48 | revision.
//
// A later grant of the same lock has a larger token, so tokens compare as plain integers. In era 0, the default, the
// token is the revision at which etcd created the lock's key. An operator raises the era, 0 to 32767, when revisions
// have moved back after a restore or a move to another cluster: every token of a later era is larger than every token
// of an earlier one. The revision is 1 to 2^48-1. Zero is not a token.
//
// In SQL a Token is a 64-bit integer. In JSON it is a string, and a number is refused: decoders that read numbers as
// float64, as in JavaScript, round above 2^53, and tokens are larger from era 32 on. Use omitzero for a struct field
// that may have no token.
type Token int64

// NewToken returns the token of a revision in an era. The era is 0 to 32767, the revision 1 to 2^48-1. For other values
// NewToken returns 0 and an error that matches [ErrInvalidToken].
func NewToken(era uint16, revision int64) (Token, error) {
	if era > maxEra {
		return 0, fmt.Errorf("%w: era %d: want 0 to %d", ErrInvalidToken, era, maxEra)
	}
	if revision < 1 || revision > maxRevision {
		return 0, fmt.Errorf("%w: revision %d: want 1 to %d", ErrInvalidToken, revision, int64(maxRevision))
	}
	return Token(int64(era)<<revisionBits | revision), nil
}

// Parse reads the form that [Token.String] writes. A token has one spelling: decimal digits without sign, space or
// leading zero. For any other text, and for a number that is not a valid token, Parse returns 0 and an error that
// matches [ErrInvalidToken] and quotes at most the first 24 bytes of s.
func Parse(s string) (Token, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	t := Token(n)
	// strconv accepts a sign and leading zeros.
	if err != nil || s[0] < '1' || s[0] > '9' || !t.Valid() {
		return 0, fmt.Errorf("%w %s: want %s", ErrInvalidToken, clip.Quote(s), legalToken)
	}
	return t, nil
}

// Era returns the era of a valid token.
func (t Token) Era() uint16 { return uint16(t >> revisionBits) }

// Revision returns the revision of a valid token. In era 0 it equals the token.
func (t Token) Revision() int64 { return int64(t) & maxRevision }

// Valid reports whether t is positive and has a revision other than 0.
func (t Token) Valid() bool { return t > 0 && t.Revision() != 0 }

// String returns the decimal form, as in the HTTP header Fencing-Token. [Parse] reads it.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Text returns the token in a readable form, era:revision.
func (t Token) Text() string {
	return strconv.FormatUint(uint64(t.Era()), 10) + ":" + strconv.FormatInt(t.Revision(), 10)
}

// MarshalText returns the decimal form. For an invalid token it returns an error that matches [ErrInvalidToken], since
// no reader would accept it.
func (t Token) MarshalText() ([]byte, error) {
	if !t.Valid() {
		return nil, fmt.Errorf("%w %d: want %s", ErrInvalidToken, int64(t), legalToken)
	}
	return strconv.AppendInt(nil, int64(t), 10), nil
}

// UnmarshalText sets t from the decimal form, with the rules and the errors of [Parse]. On an error t is unchanged.
func (t *Token) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// ReadToken identifies a grant of a read lock at the resource. It has the form of a [Token] and is of the same series:
// of two grants of one lock, to readers or writers, the later one has the larger token.
//
// It is a separate type, so that a reader cannot write: no verb that writes takes it, [FromContext] does not find it
// in a reader's context, and over HTTP and gRPC it has a separate header. A resource that knows only writers finds no
// token in a reader's request and refuses it.
type ReadToken int64

// ParseRead is [Parse] for the token of a read lock.
func ParseRead(s string) (ReadToken, error) {
	t, err := Parse(s)
	return ReadToken(t), err
}

// Era returns the era of a valid token.
func (t ReadToken) Era() uint16 { return Token(t).Era() }

// Revision returns the revision of a valid token. In era 0 it equals the token.
func (t ReadToken) Revision() int64 { return Token(t).Revision() }

// Valid reports whether t is positive and has a revision other than 0.
func (t ReadToken) Valid() bool { return Token(t).Valid() }

// CheckEra is [Token.CheckEra].
func (t ReadToken) CheckEra(most uint16) error { return Token(t).CheckEra(most) }

// String returns the decimal form, as in the HTTP header Fencing-Read-Token. [ParseRead] reads it.
func (t ReadToken) String() string { return Token(t).String() }

// Text returns the token in a readable form, era:revision.
func (t ReadToken) Text() string { return Token(t).Text() }

// MarshalText is [Token.MarshalText].
func (t ReadToken) MarshalText() ([]byte, error) { return Token(t).MarshalText() }

// UnmarshalText is [Token.UnmarshalText].
func (t *ReadToken) UnmarshalText(text []byte) error { return (*Token)(t).UnmarshalText(text) }

// DefaultMaxEra is the highest era that a fence accepts by default. The era of the sessions can be raised up to this
// value without a change of the fences' options.
const DefaultMaxEra = 15

// CheckEra returns an error that matches [ErrInvalidToken] if the era of t is above most, or above [DefaultMaxEra] if
// most is 0. [Guard] and every store call it before anything else, with their option MaxEra.
//
// A mark only grows. Without this bound a single token that was never granted, for example a clock's value or one from
// a damaged file, could become the mark of a resource and lock out every holder.
func (t Token) CheckEra(most uint16) error {
	if most == 0 {
		most = DefaultMaxEra
	}
	if t.Era() <= most {
		return nil
	}
	return fmt.Errorf("%w %d: its era is %d, want 0 to %d: if this era is in use, raise MaxEra in the options of the fence",
		ErrInvalidToken, int64(t), t.Era(), most)
}

// CheckMaxEra returns an error that names the field if most is not a legal era.
func CheckMaxEra(field string, most uint16) error {
	if most > maxEra {
		return fmt.Errorf("%s is %d, want 1 to %d, or 0 for %d", field, most, maxEra, DefaultMaxEra)
	}
	return nil
}
