package fence

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	revisionBits = 48
	maxRevision  = 1<<revisionBits - 1
	maxEra       = 1<<(63-revisionBits) - 1 // one bit less than an uint16: a token stays positive

	legalToken = "plain decimal 1 to 9223372036854775807, low 48 bits not 0"
)

// ErrInvalidToken says that a token is zero, negative or malformed, or that a part of it is outside its range.
// It is the caller's mistake, not a lost lock.
var ErrInvalidToken = errors.New("fence: invalid token")

// Token is the number that a lock's grant is known by at the resource: era<<48 | revision.
//
// For one lock, a later grant has the larger token, so tokens compare as plain integers. In era 0, the default,
// the token is the revision at which etcd created the lock's key. An operator raises the era, 0 to 32767, when
// revisions have moved back, after a restore or a move to another cluster: every token of a later era is larger
// than every token of an earlier one. The revision is 1 to 2^48-1. Zero is no token.
//
// In SQL a Token is a 64-bit integer. In JSON it is a string, and a number is refused: decoders that read numbers as
// float64, as JavaScript's does, round those above 2^53, which tokens are from era 32 on. Tag the field of a
// struct that may have no token with omitzero.
type Token int64

// NewToken returns the token of a revision in an era. The era is 0 to 32767, the revision 1 to 2^48-1;
// outside that NewToken returns 0 and an error that matches [ErrInvalidToken].
func NewToken(era uint16, revision int64) (Token, error) {
	if era > maxEra {
		return 0, fmt.Errorf("%w: era %d: want 0 to %d", ErrInvalidToken, era, maxEra)
	}
	if revision < 1 || revision > maxRevision {
		return 0, fmt.Errorf("%w: revision %d: want 1 to %d", ErrInvalidToken, revision, int64(maxRevision))
	}
	return Token(int64(era)<<revisionBits | revision), nil
}

// Parse reads the wire form that [Token.String] writes. It is strict, so that a token has one spelling: decimal
// digits only, without sign, space or leading zero. Anything else, and a number that is not a valid token, gives 0
// and an error that matches [ErrInvalidToken] and quotes at most the first 24 bytes of s.
func Parse(s string) (Token, error) {
	n, ok := parseDecimal(s)
	t := Token(n)
	if !ok || !t.Valid() {
		return 0, fmt.Errorf("%w %s: want %s", ErrInvalidToken, quote(s), legalToken)
	}
	return t, nil
}

// ParseText reads the form for people that [Token.Text] writes, as strictly as [Parse] and with the same errors.
func ParseText(s string) (Token, error) {
	head, tail, found := strings.Cut(s, ":")
	era, okEra := parseDecimal(head)
	revision, okRevision := parseDecimal(tail)
	switch {
	case !found || !okEra || !okRevision:
		return 0, fmt.Errorf("%w %s: want era:revision, both plain decimal", ErrInvalidToken, quote(s))
	case era > maxEra: // NewToken would see a truncated era
		return 0, fmt.Errorf("%w: era %d: want 0 to %d", ErrInvalidToken, era, maxEra)
	}
	return NewToken(uint16(era), revision)
}

// Era returns the token's era. It means nothing if the token is not valid.
func (t Token) Era() uint16 { return uint16(t >> revisionBits) }

// Revision returns the token's revision: in era 0, and only there, the same number as the token.
// It means nothing if the token is not valid.
func (t Token) Revision() int64 { return int64(t) & maxRevision }

// Valid reports whether t is a token: positive, with a revision that is not 0.
func (t Token) Valid() bool { return t > 0 && t.Revision() != 0 }

// Compare returns -1 if t was granted before o, 0 if they are the same and +1 if t was granted after o.
// Token.Compare is a function for [slices.SortFunc]. The order has a meaning only among the tokens of one lock.
func (t Token) Compare(o Token) int { return cmp.Compare(t, o) }

// String returns the decimal wire form, as in the HTTP header Fencing-Token. [Parse] reads it.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Text returns the form for people, era:revision. [ParseText] reads it.
func (t Token) Text() string {
	return strconv.FormatUint(uint64(t.Era()), 10) + ":" + strconv.FormatInt(t.Revision(), 10)
}

// MarshalText returns the decimal wire form. A token that is not valid gives an error that matches
// [ErrInvalidToken], since no reader would accept it.
func (t Token) MarshalText() ([]byte, error) {
	if !t.Valid() {
		return nil, fmt.Errorf("%w %d: want %s", ErrInvalidToken, int64(t), legalToken)
	}
	return strconv.AppendInt(nil, int64(t), 10), nil
}

// UnmarshalText sets t from the decimal wire form, with the rules and the errors of [Parse].
// On an error t is unchanged.
func (t *Token) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// parseDecimal is stricter than strconv, which takes a sign and leading zeros.
func parseDecimal(s string) (int64, bool) {
	const maxDigits = 19 // of the largest int64
	if s == "" || len(s) > maxDigits || s[0] == '0' && s != "0" {
		return 0, false
	}
	if strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// quote bounds what reaches a log: the value comes from a peer. The longest legal form has 21 bytes.
func quote(s string) string {
	const limit = 24
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "…"
	}
	return strconv.Quote(s)
}
