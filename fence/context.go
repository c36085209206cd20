package fence

import "context"

// contextKey is the key of the one tenure that a context carries: a Token or a ReadToken.
type contextKey struct{}

// NewContext returns a context that carries t instead of any token of ctx, of a writer or a reader.
//
// Work that was started under a token keeps that token, even if another holder has the lock by then. If t is not valid the
// context carries no token, not even that of ctx: work without a token must not use another's.
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// FromContext returns the token that ctx carries and true, or 0 and false if it carries none or that of a read lock.
// A token returned with true is valid.
func FromContext(ctx context.Context) (Token, bool) {
	t, _ := ctx.Value(contextKey{}).(Token)
	if !t.Valid() {
		return 0, false
	}
	return t, true
}

// NewReadContext is [NewContext] for the token of a read lock. A writer's token of ctx is not found in it: who asked for a read
// lock does not write by mistake under a lock around it.
func NewReadContext(ctx context.Context, t ReadToken) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// ReadFromContext returns the token of a read lock that ctx carries and true, or 0 and false if it carries none or that of a
// writer. A token returned with true is valid.
func ReadFromContext(ctx context.Context) (ReadToken, bool) {
	t, _ := ctx.Value(contextKey{}).(ReadToken)
	if !t.Valid() {
		return 0, false
	}
	return t, true
}
