package fence

import "context"

type contextKey struct{}

// NewContext returns a context that carries t, in place of a token that ctx carries already.
//
// A context that is derived later does not change it: the work that was started under a token keeps that token
// whoever holds the lock by then. If t is not valid the context carries no token, not even that of ctx: work
// without a token must not pass with another's.
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// FromContext returns the token that ctx carries and true, or 0 and false if it carries none.
// A token that it returns with true is valid.
func FromContext(ctx context.Context) (Token, bool) {
	t, _ := ctx.Value(contextKey{}).(Token)
	if !t.Valid() {
		return 0, false
	}
	return t, true
}
