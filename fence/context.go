package fence

import (
	"context"
	"slices"
)

// contextKey is the key of the one tenure that a context carries.
type contextKey struct{}

// lockKey is the key of the innermost tenure of the lock with this name.
type lockKey string

// tenure is a context that carries a token. It is its own value for contextKey and for the names of the token's locks.
type tenure struct {
	context.Context //nolint:containedctx // it is a context

	token claimant
	locks []string // empty if the token came without a name
	alone bool     // it hides the tenures that Context carries
}

func (t *tenure) Value(key any) any {
	switch key := key.(type) {
	case contextKey:
		return t
	case lockKey:
		switch {
		case slices.Contains(t.locks, string(key)):
			return t
		case t.alone:
			return nil
		}
	}
	return t.Context.Value(key)
}

// carried returns the tenure of ctx whose token is valid, or nil.
func carried(ctx context.Context) *tenure {
	t, _ := ctx.Value(contextKey{}).(*tenure)
	if t == nil || !t.token.Valid() {
		return nil
	}
	return t
}

// NewContext returns a context that carries t. It hides every token of ctx, a writer's or a reader's, also from
// [ForLock]. It carries no name of a lock; see [WithLock].
//
// Work that was started under a token keeps that token, even if another holder has the lock by then. If t is not valid
// the context carries no token, not even that of ctx: work without a token must not use the token of other work.
func NewContext(ctx context.Context, t Token) context.Context {
	return &tenure{Context: ctx, token: writer(t), alone: true}
}

// FromContext returns the token that ctx carries and true, or 0 and false if it carries none or that of a read lock.
// A token returned with true is valid.
func FromContext(ctx context.Context) (Token, bool) {
	if t := carried(ctx); t != nil && !t.token.read {
		return t.token.Token, true
	}
	return 0, false
}

// NewReadContext is [NewContext] for the token of a read lock. It hides a writer's token of ctx too, so that work under
// a read lock does not write by mistake with the token of an outer lock.
func NewReadContext(ctx context.Context, t ReadToken) context.Context {
	return &tenure{Context: ctx, token: reader(t), alone: true}
}

// ReadFromContext returns the token of a read lock that ctx carries and true, or 0 and false if it carries none or that
// of a writer. A token returned with true is valid.
func ReadFromContext(ctx context.Context) (ReadToken, bool) {
	if t := carried(ctx); t != nil && t.token.read {
		return ReadToken(t.token.Token), true
	}
	return 0, false
}

// WithLock returns a context that carries the token of ctx and says that it belongs to the lock with this name, or to
// each of several locks that were granted as one. A name is 1 to [MaxLock] bytes of UTF-8 without NUL; the verbs refuse
// others. Locks and elections make their contexts with WithLock, with names that start with the session's prefix. If
// ctx carries no token, neither does the result.
//
// With several names the token has none until [ForLock] chooses one. Without a name, WithLock removes that of ctx: do
// this as long as processes of an earlier version, which knew no names, still use the resource.
func WithLock(ctx context.Context, locks ...string) context.Context {
	t := carried(ctx)
	if t == nil {
		return ctx
	}
	return &tenure{Context: ctx, token: t.token, locks: slices.Clone(locks)}
}

// LockFromContext returns the name of the lock that the token of ctx belongs to, and true. It returns false if ctx
// carries no token, or if its token came without a name or with several.
func LockFromContext(ctx context.Context) (string, bool) {
	if t := carried(ctx); t != nil && len(t.locks) == 1 {
		return t.locks[0], true
	}
	return "", false
}

// ForLock returns a context that carries the token of the lock with this name, one of the locks under which ctx was
// made. It chooses the token that a verb uses where locks are nested, as in a lease.Session.Do inside another, or were
// granted as one. If ctx was not made under that lock, the result carries no token, and every verb refuses it with
// [ErrInvalidToken].
//
//	err := session.DoAll(ctx, []string{"orders", "stock"}, func(ctx context.Context, _ fence.Token) error {
//		return db.Do(fence.ForLock(ctx, "stock"), "stock", take)
//	})
func ForLock(ctx context.Context, lock string) context.Context {
	t, _ := ctx.Value(lockKey(lock)).(*tenure)
	if t == nil {
		return &tenure{Context: ctx}
	}
	return &tenure{Context: ctx, token: t.token, locks: []string{lock}}
}
