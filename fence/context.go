package fence

import (
	"context"
	"time"
)

type contextKey struct{}

// Holder is what a token's context also tells of who holds it: for people, as in an audit trail. No decision is made
// by it.
type Holder struct {
	Name string        // the owner of a lock, the value of a candidate
	TTL  time.Duration // of the lease
}

// held is a token with its holder.
type held struct {
	token  Token
	holder Holder
}

// NewContext returns a context that carries t, in place of a token that ctx carries already.
//
// A context that is derived later does not change it: the work that was started under a token keeps that token
// whoever holds the lock by then. If t is not valid the context carries no token, not even that of ctx: work
// without a token must not pass with another's.
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// NewHolderContext is [NewContext] for a token whose holder is known. The contexts of locks and elections are made by it.
func NewHolderContext(ctx context.Context, t Token, h Holder) context.Context {
	return context.WithValue(ctx, contextKey{}, held{t, h})
}

// FromContext returns the token that ctx carries and true, or 0 and false if it carries none.
// A token that it returns with true is valid.
func FromContext(ctx context.Context) (Token, bool) {
	t, _ := fromContext(ctx)
	if !t.Valid() {
		return 0, false
	}
	return t, true
}

// HolderFromContext returns the holder of the token that ctx carries. It is zero if the token came without one, for
// instance over the network, which carries tokens alone.
func HolderFromContext(ctx context.Context) Holder {
	_, h := fromContext(ctx)
	return h
}

func fromContext(ctx context.Context) (Token, Holder) {
	switch v := ctx.Value(contextKey{}).(type) {
	case Token:
		return v, Holder{}
	case held:
		return v.token, v.holder
	default:
		return 0, Holder{}
	}
}
