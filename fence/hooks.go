package fence

import (
	"context"
	"errors"
	"strings"
)

// Hooks are functions that a resource calls when it has accepted or refused a token, for metrics, logs and alerts.
// Functions that are nil are not called. Set them in the options of a store's marks, or in [Guard].Hooks.
//
// A verb calls them before it returns, in its own goroutine and with its context; a verb without a context passes
// [context.Background]. The library holds no lock during a call. But a check in the caller's own transaction has locked
// the mark: a function that blocks then delays others. A verb calls one of the two, once even after several attempts,
// or neither if it fails for another reason.
type Hooks struct {
	// Accepted is called when a token was accepted. A verb that runs a function calls it when the function has
	// returned, also with an error.
	Accepted func(ctx context.Context, a Access)
	// Refused is called when a token was refused. Err is the verb's error and matches [ErrStale] or [ErrOtherLock].
	Refused func(ctx context.Context, a Access, err error)
}

// Access is a token that has reached a resource.
type Access struct {
	Resource string // the whole path for the verbs of paths
	Token    Token  // of a reader if Read is set
	Read     bool   // Token is a [ReadToken]
	Lock     string // the lock of the token, "" if it is not known
}

// Tell calls the hook that fits a verb's error: Accepted for nil, Refused for the refusal of a, and none for other
// errors. Implementations of stores call it. h may be nil.
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

// refusedBy reports whether err is the refusal of the access, at its resource or at a node above. It may be the refusal
// of another access: the cause of a context that has ended.
func (a Access) refusedBy(err error) bool {
	resource, token := "", Token(0)
	if stale, ok := errors.AsType[*StaleError](err); ok {
		resource, token = stale.Resource, stale.Token
	} else if other, ok := errors.AsType[*OtherLockError](err); ok {
		resource, token = other.Resource, other.Token
	}
	return token != 0 && token == a.Token && (resource == a.Resource || strings.HasPrefix(a.Resource, resource+"/"))
}
