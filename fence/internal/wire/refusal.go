package wire

import (
	"errors"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

// maxResource bounds the name of a resource in a refusal: a store's names can have any length, and clients limit the
// size of a refusal that they read.
const maxResource = 4 << 10

// Stale returns the refusal in err in the form to send, with long names cut. ok is false if err contains no
// [*fence.StaleError].
func Stale(err error) (known fence.StaleError, ok bool) {
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale == nil {
		return known, false
	}
	known = *stale
	known.Resource = clip.To(known.Resource, maxResource)
	return known, true
}

// OtherLock is [Stale] for a token of another lock.
func OtherLock(err error) (known fence.OtherLockError, ok bool) {
	other, ok := errors.AsType[*fence.OtherLockError](err)
	if !ok || other == nil {
		return known, false
	}
	known = *other
	known.Resource = clip.To(known.Resource, maxResource)
	known.Lock, known.Follows = clip.To(known.Lock, fence.MaxLock), clip.To(known.Follows, fence.MaxLock)
	return known, true
}

// Member parses a token in a received refusal. It returns 0 for a malformed one: a refused holder must stop in any
// case.
func Member(text string) fence.Token {
	t, err := fence.Parse(text)
	if err != nil {
		return 0
	}
	return t
}
