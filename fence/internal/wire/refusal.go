package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

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
