// Package audit has the words of an audit trail: who held which token at a resource, when, and how that ended. The packages
// sqlfence and pgxfence keep such trails. No decision is made by what is in one.
package audit

import (
	"context"
	"errors"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Cause is how a tenure has ended.
type Cause string

// The causes.
const (
	CauseExplicit   Cause = "explicit"   // its holder has released the lock
	CauseExpired    Cause = "expired"    // the lease was not renewed in time
	CauseRevoked    Cause = "revoked"    // somebody else has taken the lock or its lease away
	CauseSuperseded Cause = "superseded" // a newer token has reached the resource, before any other end was recorded
)

// Tenure is the time under one token at one resource.
type Tenure struct {
	Resource string
	Token    fence.Token
	Holder   Holder    // zero where the token's context did not tell it
	Granted  time.Time // when the token first reached the resource, by the resource's clock, in UTC
	Released time.Time // when it ended, by the same clock; zero if no end is recorded
	Cause    Cause     // how; empty if no end is recorded
}

// Refusal is a stale token that a resource has refused.
type Refusal struct {
	Resource string
	Token    fence.Token // the one offered
	Highest  fence.Token // the one stored
	Holder   Holder
	At       time.Time // by the resource's clock, in UTC
}

// Holder is who holds a token, for people.
type Holder struct {
	Name string        // the owner of a lock, the value of a candidate
	TTL  time.Duration // of the lease
}

type contextKey struct{}

// held is a holder with its token.
type held struct {
	token  fence.Token
	holder Holder
}

// NewContext returns a context that carries the holder of the token that ctx carries. The contexts of locks and elections
// are made by it. It changes nothing if ctx carries no token.
func NewContext(ctx context.Context, h Holder) context.Context {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, held{t, h})
}

// FromContext returns the holder of the token that ctx carries. It is zero if the token came without one, for instance over
// the network, which carries tokens alone.
func FromContext(ctx context.Context) Holder {
	h, _ := ctx.Value(contextKey{}).(held)
	if t, _ := fence.FromContext(ctx); t != h.token {
		return Holder{} // it is another token's
	}
	return h.holder
}

// CauseOf says how the tenure of ctx, the context of a lock or an election, has ended: [CauseExplicit] if it has not ended, or
// by its holder's own doing. The cause of the context tells it, if it or an error that it wraps has a method
//
//	ReleaseCause() audit.Cause
//
// as those of leasefence's own locks have.
func CauseOf(ctx context.Context) Cause {
	if told, ok := errors.AsType[interface {
		error
		ReleaseCause() Cause
	}](context.Cause(ctx)); ok {
		return told.ReleaseCause()
	}
	return CauseExplicit
}
