// Package candidacy is the part of package lease that only package election uses. What a leader needs beyond a lock's
// holder does not belong among the methods of every lock.
//
// Package lease sets the functions. Each session is a *lease.Session: its type cannot be named here, because lease
// imports this package.
package candidacy

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

var (
	// Campaign acquires the lock called name. Unlike Lock it enters etcd's queue at once, even if another caller of the
	// session wants the name: other processes see the candidate, and may delete its key while it waits. Then it enters
	// again at the end of the queue. The caller has checked the name and the value.
	Campaign func(ctx context.Context, session any, name, value string, c Candidate) (Hold, error)
	// Enter begins work for whose end the session's Close waits once all handles have ended. The caller calls leave at
	// that end. Leave is nil if the session is closing.
	Enter func(session any) (leave func())
	// Logger returns the session's log.
	Logger func(session any) *slog.Logger
)

// Candidate is what a candidate adds to the acquisition of a lock.
type Candidate struct {
	// Mark begins the suffix of each of the candidate's keys.
	Mark string
	// Waits is called, in a goroutine, for each place in the queue in which the candidate waits. ctx ends when that
	// wait does, and Waits must then return.
	Waits func(ctx context.Context, q *queue.Queue, e queue.Entry)
	// Touched is called, perhaps more than once, when the candidate's key was written at rev and is still its own. It
	// must not block.
	Touched func(rev int64)
}

// Hold is what a leader needs of its lock beyond the methods of every lock.
type Hold struct {
	Lock     any // a *lease.Lock
	Queue    *queue.Queue
	Entry    queue.Entry   // of the lock, in the queue
	Patience time.Duration // the time limit of a release that has no caller's context

	// While is etcd.Conn.While with the life of the lease.
	While func(ctx context.Context, do func(*etcd.Attempt) error) (late bool, err error)
	// Ended reports to the lock that its key was found deleted, overwritten or asked to release, which ends it.
	Ended func(ctx context.Context, end queue.End)
	// Overdue returns for how long a renewal has been overdue; not positive if none is. A lost lease is not renewed,
	// so it becomes overdue too.
	Overdue func() time.Duration
	// Release is the lock's Unlock. If handOver is not nil, Release calls it first, and it may delete the key itself.
	Release func(ctx context.Context, handOver func(context.Context) (deleted bool, err error)) error
}
