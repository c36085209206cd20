package fence

import (
	"context"
	"slices"
)

// contextKey is the key of the one tenure that a context carries.
type contextKey struct{}

// lockKey is the key of the innermost tenure of the lock with this name.
type lockKey string

// tenure is a context with a token of a writer or a reader, and its own value for contextKey and for the names of its locks.
type tenure struct {
	context.Context //nolint:containedctx // it is a context

	token claimant
	locks []string // none if the token came without
	alone bool     // it is there instead of the tenures that Context carries
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

// NewContext returns a context that carries t instead of any token of ctx, of a writer or a reader; [ForLock] finds none of those
// either. It carries no name of a lock; see [WithLock].
//
// Work that was started under a token keeps that token, even if another holder has the lock by then. If t is not valid the
// context carries no token, not even that of ctx: work without a token must not use another's.
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

// NewReadContext is [NewContext] for the token of a read lock. A writer's token of ctx is not found in it: who asked for a read
// lock does not write by mistake under a lock around it.
func NewReadContext(ctx context.Context, t ReadToken) context.Context {
	return &tenure{Context: ctx, token: reader(t), alone: true}
}

// ReadFromContext returns the token of a read lock that ctx carries and true, or 0 and false if it carries none or that of a
// writer. A token returned with true is valid.
func ReadFromContext(ctx context.Context) (ReadToken, bool) {
	if t := carried(ctx); t != nil && t.token.read {
		return ReadToken(t.token.Token), true
	}
	return 0, false
}

// WithLock returns a context whose token, that of ctx, belongs to the lock with this name, or to each of several locks that were
// granted as one. A name is at most [MaxLock] bytes of UTF-8 without NUL; the verbs refuse others. The contexts of locks and
// elections are made by it, with the name that has the session's prefix before it. If ctx carries no token, neither does the
// result.
//
// Of several names none is that of the token: choose one with [ForLock]. Without any, WithLock takes the name off: for a time in which
// processes of an earlier version, which knew no names, still use the resource.
func WithLock(ctx context.Context, locks ...string) context.Context {
	t := carried(ctx)
	if t == nil {
		return ctx
	}
	return &tenure{Context: ctx, token: t.token, locks: slices.Clone(locks)}
}

// LockFromContext returns the name of the lock that the token of ctx belongs to, and true. It returns false if ctx carries no
// token, or if its token came without a name or with several.
func LockFromContext(ctx context.Context) (string, bool) {
	if t := carried(ctx); t != nil && len(t.locks) == 1 {
		return t.locks[0], true
	}
	return "", false
}

// ForLock returns a context that carries the token of the lock with this name, of those under which ctx was made: inside of two
// nested functions, as of lease.Session.Do, or under several locks that were granted as one, it says whose token a verb means. If the name is that of
// none of them, the result carries no token, and every verb refuses it with [ErrInvalidToken].
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
