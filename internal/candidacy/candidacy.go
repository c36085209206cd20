// Package candidacy is what package lease does for package election and for nobody else: what a leader needs beyond a
// holder of a lock has no place among the methods of every lock.
package candidacy

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// Of gives the inside of a *lease.Session. Package lease sets it; it cannot be named here, since it imports this
// package.
var Of func(session any) *Session

// Session is a *lease.Session, seen from inside.
type Session struct {
	// Campaign acquires the lock called name, but stands in etcd's queue from the first, whoever else of the session wants
	// the name: others see it, and may delete its key while it waits. It then enters again at the end. The name and the
	// value have been checked.
	Campaign func(ctx context.Context, name, value string, c Candidate) (Hold, error)
	// Enter begins a piece of work that Close waits for, until Leave. It reports false if the session is closing.
	Enter func() bool
	Leave func()
	// Spawn runs a function in a goroutine that Close waits for; it must return when the handles have ended. It reports
	// false if it is too late for that.
	Spawn func(f func()) bool
	// Patience is the time for a release that is not bound by a caller's context.
	Patience time.Duration
	Logger   *slog.Logger
}

// Candidate is what an acquisition has besides as a candidate.
type Candidate struct {
	// Mark begins the suffix of each of its keys.
	Mark string
	// Waits is called, in a goroutine, for each place in which it has to wait. It must return when ctx ends, which is when
	// the wait does.
	Waits func(ctx context.Context, q *queue.Queue, e queue.Entry)
	// Touched is called, perhaps more than once, when its key was written at rev and is still its own. It must not block.
	Touched func(rev int64)
}

// Hold is what a leader needs of its lock besides the methods that every lock has.
type Hold struct {
	Lock  any // a *lease.Lock
	Queue *queue.Queue
	Entry queue.Entry // of the lock, in the queue

	// While is etcd.Conn.While, for as long as the lease is not lost.
	While func(ctx context.Context, do func(*etcd.Attempt) error) (late bool, err error)
	// Ended takes note that the key was found deleted, overwritten or asked to end, and returns the cause of the lock's context.
	Ended func(ctx context.Context, end queue.End) error
	// Overdue is since when a renewal is overdue: not positive if none is. A lease that is lost is not renewed, so it
	// becomes overdue too.
	Overdue func() time.Duration
	// Release is the lock's Unlock. If handOver is not nil it may delete the key in its way first.
	Release func(ctx context.Context, handOver func(context.Context) (deleted bool, err error)) error
}
