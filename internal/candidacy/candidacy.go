// Package candidacy is what package lease does for package election and for nobody else: what a leader needs beyond a
// holder of a lock has no place among the methods of every lock.
package candidacy

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
)

// Of gives the inside of a *lease.Session. Package lease sets it; it cannot be named here, since it imports this
// package.
var Of func(session any) Session

// Session is a *lease.Session, seen from inside.
type Session interface {
	// Campaign waits for its turn as Lock does, but in etcd's queue from the first: others see it and can ask it to
	// let them pass. The name and the value have been checked.
	Campaign(ctx context.Context, name, value string, priority int) (Tenure, error)
	// Enter begins a piece of work that Close waits for, until Leave. It reports false if the session is closing.
	Enter() bool
	Leave()
	// Patience is the time for a release that is not bound by a caller's context.
	Patience() time.Duration
	Logger() *slog.Logger
}

// Tenure is a campaign that was won.
type Tenure interface {
	Token() fence.Token
	Context() context.Context
	Err() error // as of a Lock
	Key() string
	Held() clientv3.Cmp
	Explain(ctx context.Context, err error) error
	// Lease is what is left until the local deadline, 0 after a loss, and since when a renewal is overdue: not positive
	// if none is. A lease that is lost is not renewed, so it becomes overdue too.
	Lease() (left, overdue time.Duration)
	// Proclaim changes the value in the key. It must not be called twice at a time.
	Proclaim(ctx context.Context, value string) error
	// Promote brings the candidate with that value right behind this one.
	Promote(ctx context.Context, value string) error
	// Resign is a Lock's Unlock.
	Resign(ctx context.Context) error
	// ResignTo is Promote and Resign, where nobody else comes between. If that cannot be, it resigns all the same.
	ResignTo(ctx context.Context, value string) error
}
