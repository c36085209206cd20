package fence

import (
	"context"
	"errors"
	"strings"
)

// Hooks are functions that a resource calls when it has accepted or refused a token, for metrics, logs and alerts; those that are
// nil are not called. They are set where the marks of a store are made, and for memory in [Guard].Hooks.
//
// The goroutine of a verb calls them before the verb returns, with the verb's context. A verb without one gives
// [context.Background]. No lock of the library is held during a call, but a check in the caller's own transaction has locked the mark:
// a function that blocks then holds up others. A verb calls one of the two once, also after several attempts, or none if it has
// failed for another reason.
type Hooks struct {
	// Accepted is called when a token was accepted. A verb that runs a function calls it when the function has returned, also
	// with an error.
	Accepted func(ctx context.Context, a Access)
	// Refused is called when a token was refused. Err is the verb's error and matches [ErrStale] or [ErrOtherLock].
	Refused func(ctx context.Context, a Access, err error)
}

// Access is a token that has come to a resource.
type Access struct {
	Resource string // of a path its end
	Token    Token  // of a reader if Read is set
	Read     bool   // Token is a [ReadToken]
	Lock     string // that the token belongs to, "" if that is not known
}

// Tell calls the hook for a verb's error, nil if it has accepted the token. It is for those who write a store. Hooks may be nil.
func (h *Hooks) Tell(ctx context.Context, a Access, err error) {
	switch {
	case h == nil:
	case err == nil:
		if h.Accepted != nil {
			h.Accepted(ctx, a)
		}
	case h.Refused != nil && a.refusedBy(err):
		h.Refused(ctx, a, err)
	}
}

// refusedBy reports whether err is the refusal of the access, at its resource or at a node above. A context that has ended may
// have the refusal of another one as its cause.
func (a Access) refusedBy(err error) bool {
	resource, token := "", Token(0)
	if stale, ok := errors.AsType[*StaleError](err); ok {
		resource, token = stale.Resource, stale.Token
	} else if other, ok := errors.AsType[*OtherLockError](err); ok {
		resource, token = other.Resource, other.Token
	}
	return token != 0 && token == a.Token && (resource == a.Resource || strings.HasPrefix(a.Resource, resource+"/"))
}
