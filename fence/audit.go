package fence

import (
	"context"
	"errors"
	"time"
)

// Cause is how a tenure has ended, in an audit trail.
type Cause string

// The causes.
const (
	Explicit   Cause = "explicit"   // its holder has let go
	Expired    Cause = "expired"    // the lease was not renewed in time
	Revoked    Cause = "revoked"    // somebody else has taken the lock or its lease away
	Superseded Cause = "superseded" // a newer token has reached the resource, before any other end was recorded
)

// Tenure is the time under one token at one resource, as an audit trail has it.
type Tenure struct {
	Resource string
	Token    Token
	Holder   Holder    // zero where the token's context did not tell it
	Granted  time.Time // when the token first reached the resource, by the resource's clock, in UTC
	Released time.Time // when it ended, by the same clock; zero if no end is recorded
	Cause    Cause     // how; empty if no end is recorded
}

// Refusal is a stale token that a resource has refused, as an audit trail has it.
type Refusal struct {
	Resource string
	Token    Token // the one offered
	Highest  Token // the one stored
	Holder   Holder
	At       time.Time // by the resource's clock, in UTC
}

// CauseOf says how the tenure of ctx, the context of a lock or an election, has ended: [Explicit] if it has not ended, or by
// its holder's own doing. The cause of the context tells it, if it or an error that it wraps has a method
//
//	ReleaseCause() fence.Cause
//
// as those of leasefence's own locks have.
func CauseOf(ctx context.Context) Cause {
	if told, ok := errors.AsType[interface {
		error
		ReleaseCause() Cause
	}](context.Cause(ctx)); ok {
		return told.ReleaseCause()
	}
	return Explicit
}
