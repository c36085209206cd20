// Package audit has the types of an audit trail: who held which token at a resource, when, and how that ended. The
// packages sqlfence and pgxfence keep such trails. A fence never decides by what is in its trail.
package audit

import (
	"context"
	"errors"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Cause is how a tenure ended.
type Cause string

// The causes.
const (
	CauseExplicit   Cause = "explicit"   // its holder has released the lock
	CauseExpired    Cause = "expired"    // the lease was not renewed in time
	CauseRevoked    Cause = "revoked"    // somebody else has taken the lock or its lease away
	CauseSuperseded Cause = "superseded" // a newer token has reached the resource, before any other end was recorded
)

// Tenure is the time of one token at one resource.
type Tenure struct {
	Resource string
	Token    fence.Token
	Holder   Holder    // zero if the token's context carried none
	Granted  time.Time // when the token first reached the resource, by the resource's clock, in UTC
	Released time.Time // when it ended, by the same clock; zero if no end is recorded
	Cause    Cause     // empty if no end is recorded
}

// Refusal is a stale token that a resource has refused.
type Refusal struct {
	Resource string
	Token    fence.Token // the one offered
	Highest  fence.Token // the one stored
	Holder   Holder
	At       time.Time // by the resource's clock, in UTC
}

// Holder describes the holder of a token, for people.
type Holder struct {
	Name string        // the owner of a lock, the value of a candidate
	TTL  time.Duration // of the lease
}

// contextKey is the key of the holder of this token.
type contextKey fence.Token

// NewContext returns a context that carries the holder of the token that ctx carries. Locks and elections make their
// contexts with it. If ctx carries no token, NewContext returns ctx.
func NewContext(ctx context.Context, h Holder) context.Context {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, contextKey(t), h)
}

// FromContext returns the holder of the token that ctx carries. It is zero if ctx carries no token, or if the token came
// without a holder, for instance over the network, which carries only the token and its lock's name. Where locks of
// different clusters are nested and have equal tokens, FromContext returns the holder of the innermost.
func FromContext(ctx context.Context) Holder {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return Holder{}
	}
	h, _ := ctx.Value(contextKey(t)).(Holder)
	return h
}

// CauseOf returns how the tenure of ctx, the context of a lock or an election, ended. It is [CauseExplicit] if the
// tenure has not ended, or if the holder itself ended it. Any other cause comes from the context's cause, if it or an
// error that it wraps has the method
//
//	ReleaseCause() audit.Cause
//
// as the errors of leasefence's own locks have.
func CauseOf(ctx context.Context) Cause {
	if ended, ok := errors.AsType[interface {
		error
		ReleaseCause() Cause
	}](context.Cause(ctx)); ok {
		return ended.ReleaseCause()
	}
	return CauseExplicit
}
