package fence

import "context"

type contextKey struct{}

// NewContext returns a context that carries t instead of any token of ctx.
//
// Work that was started under a token keeps that token, even if another holder has the lock by then. If t is not valid the
// context carries no token, not even that of ctx: work without a token must not use another's.
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// FromContext returns the token that ctx carries and true, or 0 and false if it carries none.
// A token returned with true is valid.
func FromContext(ctx context.Context) (Token, bool) {
	t, _ := ctx.Value(contextKey{}).(Token)
	if !t.Valid() {
		return 0, false
	}
	return t, true
}
