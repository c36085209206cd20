package lease

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// TryLock takes the lock called name if nobody has it or waits for it, or else returns at once an error that
// matches [ErrLocked] and carries the holder, a [*LockedError]. Other errors are those of [Session.Lock].
func (s *Session) TryLock(ctx context.Context, name string) (*Lock, error) {
	return s.TryLockWith(ctx, name, LockOptions{})
}

// TryLockWith is [Session.TryLock] with options.
func (s *Session) TryLockWith(ctx context.Context, name string, opts LockOptions) (*Lock, error) {
	var first bool // in the session
	return s.acquire(ctx, name, opts, way{
		join: func(l *Lock) { first = l.g.turns.join(l, true) },
		enter: func(l *Lock, ctx context.Context) (*Lock, error) {
			if !first {
				return l, l.findHolder(ctx)
			}
			return l, l.tryEnter(ctx)
		},
	})
}

// tryEnter takes a place only if the queue in etcd is empty.
func (l *Lock) tryEnter(ctx context.Context) error {
	for {
		l.choose()
		var holder *mvccpb.KeyValue
		err := retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) error {
			entry, first, err := l.g.queue.TryEnter(ctx, l.entry.Entry, l.owner, l.late)
			switch {
			case errors.Is(err, queue.ErrTaken):
			case err != nil:
				// It may have entered and failed only then.
				l.late = l.late || entry.Rev != 0 || !retry.Refused(err)
			case first == nil:
				l.entry.Entry = entry
			}
			holder = first
			return err
		})
		switch {
		case errors.Is(err, queue.ErrTaken):
			l.entry.Entry = queue.Entry{} // with another key; this one is not used again
			continue
		case err != nil || holder == nil:
			return err
		}
		return l.lockedBy(holder)
	}
}

// findHolder is the outcome of TryLock where an acquisition of this session is before it.
func (l *Lock) findHolder(ctx context.Context) error {
	var holder *mvccpb.KeyValue
	err := retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) (err error) {
		holder, err = l.g.queue.Owner(ctx, l.g.s.opts.Prefix+l.name+"/")
		return err
	})
	switch {
	case err != nil:
		return err
	case holder != nil:
		return l.lockedBy(holder)
	}
	// The one before it has not arrived in etcd's queue yet.
	e := &LockedError{Name: l.name}
	if first := l.g.turns.whoever(l.name); first != nil {
		e.Owner = first.owner
	}
	return e
}

func (l *Lock) lockedBy(holder *mvccpb.KeyValue) error {
	token, _ := fence.NewToken(l.g.s.opts.Era, holder.CreateRevision) // 0 if it is no legal one
	return &LockedError{Name: l.name, Owner: string(holder.Value), Key: string(holder.Key), Token: token}
}
