package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// LockSet is the hold of several locks with one token: a LockSet exists only if all of them were acquired. Its methods
// are safe for concurrent use. Its context ends as that of a [Lock] does, as soon as one of the locks is lost; the
// cause has that lock's key. The token is larger than that of every earlier holder of any of the names. Unlock deletes
// all keys in one transaction. Unlock it when you are done.
type LockSet struct{ held }

// LockAll waits until it holds all the locks with these names, and returns them as one. Sets cannot deadlock with each
// other, whatever names they have and in whatever order: LockAll enters all queues in one transaction, so of two sets
// that share names one is ahead of the other in every shared queue. It can deadlock if the caller already holds another
// lock, as any two locks can that are taken one after the other.
//
// There are 1 to 64 names; a repeated name counts once. The token is one for all of them, and larger than each earlier
// token of each of the names. A set has its own place in etcd's queues, so a turn of a name does not pass inside the
// session between a set and other callers. A server whose --max-txn-ops is below twice the number of names may refuse
// the set.
//
// Names, ctx and errors are those of [Session.Lock].
func (s *Session) LockAll(ctx context.Context, names ...string) (*LockSet, error) {
	return grip[LockSet](s.lockAll(ctx, names, false))
}

// TryLockAll takes all the locks with these names if nobody holds or waits for one of them. Otherwise it takes none and
// returns at once an error that matches [ErrLocked] and joins a [*LockedError] for each locked name; errors.As finds
// the first. Other errors are those of [Session.LockAll].
func (s *Session) TryLockAll(ctx context.Context, names ...string) (*LockSet, error) {
	return grip[LockSet](s.lockAll(ctx, names, true))
}

// DoAll is [Session.Do] with the locks taken as [Session.LockAll] takes them.
func (s *Session) DoAll(ctx context.Context, names []string, fn func(ctx context.Context, token fence.Token) error) error {
	return s.do(ctx, strings.Join(names, ", "), func() (*Lock, error) { return s.lockAll(ctx, names, false) }, fn)
}

func (s *Session) lockAll(ctx context.Context, all []string, try bool) (*Lock, error) {
	var names []string
	for _, name := range all {
		if err := queue.CheckName(name); err != nil {
			return nil, fmt.Errorf("lease: name %w", err)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) < 1 || len(names) > queue.MostInSet {
		return nil, fmt.Errorf("lease: names has %d, want 1 to %d", len(names), queue.MostInSet)
	}
	return s.obtainAll(ctx, names, mode{kind: KindLockSet, names: names, try: try})
}

// obtainAll acquires the queues with these names at once. For a tree, the first is the node.
func (s *Session) obtainAll(ctx context.Context, names []string, m mode) (*Lock, error) {
	m.more = names[1:]
	l, err := s.obtain(ctx, names[0], lockOptions{owner: s.opts.Owner}, m)
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		err = fmt.Errorf("the server takes fewer than %d operations in a transaction, see its --max-txn-ops: %w", 2*len(names), err)
	}
	switch {
	case err == nil || errors.Is(err, ErrLocked):
		return l, err
	case m.kind == KindTreeLock:
		return nil, fmt.Errorf("lease: lock tree %q: %w", m.names[0], err)
	}
	return nil, fmt.Errorf("lease: lock %q: %w", names, err)
}

// add adds a name to c's set.
func (c *contender) add(name string, shared bool) {
	other := &contender{g: c.g, name: name, lockOptions: c.lockOptions, shared: shared, hooked: c.hooked, life: c.life, end: c.end}
	other.entry.Ended = other.keyEnded
	c.with = append(c.with, other)
}

// all returns c and the other names of its set.
func (c *contender) all() []*contender { return append([]*contender{c}, c.with...) }

// entries returns the queue entries of c's set.
func (c *contender) entries() []queue.Entry {
	list := make([]queue.Entry, 0, 1+len(c.with))
	for _, c := range c.all() {
		list = append(list, c.entry.Entry)
	}
	return list
}

// tryEnter enters only if all queues, of one name or of a set, are empty.
func (c *contender) tryEnter(ctx context.Context) error {
	if c.ahead != nil {
		return c.findHolder(ctx)
	}
	var holders []*mvccpb.KeyValue
	err := c.enterBy(ctx, func(a *etcd.Attempt, set []queue.Entry) (err error) {
		holders, err = c.g.queue.TryEnterAll(a, set, c.owner)
		return err
	})
	if err != nil {
		return err
	}
	var locked []error
	for i, part := range c.all() {
		if holders[i] != nil {
			locked = append(locked, part.lockedBy(holders[i]))
		}
	}
	if c.with != nil && c.with[0].shared { // a tree, whose node comes before those above it
		slices.Reverse(locked)
	}
	if len(locked) == 1 {
		return locked[0]
	}
	return errors.Join(locked...)
}

// given returns the names of c's set as the caller gave them, each once.
func (c *contender) given() (names []string) {
	for _, c := range c.all() {
		names = append(names, c.name)
	}
	return names
}

// Names returns the names that were locked, without the session's prefix, each once.
func (l *LockSet) Names() []string { return l.lock.given() }
