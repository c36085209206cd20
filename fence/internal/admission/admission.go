// Package admission has what every store checks before it sends anything, and the rule by which a resource accepts
// tokens.
package admission

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

const legal = "with a token of 1 to 9223372036854775807, low 48 bits not 0"

// Token returns the token that ctx carries. The error matches [fence.ErrInvalidToken] if there is none, as in a
// reader's context, or if its era is above maxEra; see [fence.Token.CheckEra].
func Token(ctx context.Context, maxEra uint16) (fence.Token, error) {
	t, ok := fence.FromContext(ctx)
	if !ok {
		has := "none"
		if _, reads := fence.ReadFromContext(ctx); reads {
			has = "a reader's"
		}
		return 0, fmt.Errorf("%w: the context carries %s, want the context of a lock, or one of fence.NewContext %s",
			fence.ErrInvalidToken, has, legal)
	}
	return t, t.CheckEra(maxEra)
}

// ReadToken is [Token] for a reader's.
func ReadToken(ctx context.Context, maxEra uint16) (fence.ReadToken, error) {
	t, ok := fence.ReadFromContext(ctx)
	if !ok {
		has := "none"
		if _, writes := fence.FromContext(ctx); writes {
			has = "a writer's"
		}
		return 0, fmt.Errorf("%w: the context carries %s, want the context of a read lock, or one of fence.NewReadContext %s",
			fence.ErrInvalidToken, has, legal)
	}
	return t, t.CheckEra(maxEra)
}

// Lock returns the name of the lock that the token of ctx belongs to, or "" if it came without one. The error matches
// [fence.ErrInvalidToken] if no resource can remember the name.
func Lock(ctx context.Context) (string, error) {
	lock, ok := fence.LockFromContext(ctx)
	if !ok {
		return "", nil
	}
	return lock, fence.CheckLock(lock)
}
