package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
)

// Lock waits until it holds the lock called name, and returns it. Callers of one session are served in the order of
// their calls, and sessions take turns: see the package's section on order. Lock is not reentrant: locking a name that
// the caller already holds blocks until ctx ends.
//
// A name is 1 to 1,024 bytes of UTF-8 without NUL. "/" separates its parts: it neither begins nor ends with "/" and has
// no "//". No part begins with "~". Names are independent: "a" and "a/b" never affect each other. concurrency.Mutex and
// etcdctl lock use the same keys for the same name, so they and Lock exclude each other.
//
// Ctx bounds the wait only; the lock is held until Unlock or a loss. If the session's lease was lost before the call,
// Lock first takes a new one. On an error the caller holds nothing, and its key is gone or will be deleted in the
// background. The error wraps ctx's cause if ctx ended. It matches [ErrLost] if the lease or the key was lost while
// waiting, [ErrClosed] if the session is closed, [ErrRestored] if etcd's revisions went back, and [ErrAskedToRelease]
// if somebody asked this acquisition to release just before it got the lock.
func (s *Session) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.acquire(ctx, name, opts, mode{kind: KindLock})
}

// TryLock takes the lock called name if nobody holds it or waits for it. Otherwise it returns at once a [*LockedError],
// which matches [ErrLocked] and names the holder. Other errors are those of [Session.Lock].
func (s *Session) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.acquire(ctx, name, opts, mode{kind: KindLock, try: true})
}

// mode is what distinguishes the kinds of acquisition.
type mode struct {
	kind  Kind
	names []string // for the hooks; nil: the one name that is acquired
	more  []string // the further names of a set; those of a tree are entered as a reader
	try   bool     // fail instead of waiting
	// enter, if not nil, is called instead of [contender.take]. It returns the contender that is the first: another one
	// than its argument where that was replaced.
	enter func(*contender, context.Context) (*contender, error)
}

func (s *Session) acquire(ctx context.Context, name string, options []LockOption, m mode) (*Lock, error) {
	if err := queue.CheckName(name); err != nil {
		return nil, fmt.Errorf("lease: name %w", err)
	}
	opts, err := newLockOptions(options, s.opts)
	if err != nil {
		return nil, err
	}
	l, err := s.obtain(ctx, name, opts, m)
	if err != nil && !errors.Is(err, ErrLocked) {
		err = fmt.Errorf("lease: lock %q: %w", name, err)
	}
	return l, err
}

// obtain is attempt with the calls of the hooks around it.
func (s *Session) obtain(ctx context.Context, name string, opts lockOptions, m mode) (*Lock, error) {
	ctx, hooked, done := s.begin(ctx, name, opts.owner, m)
	defer done()
	l, err := s.attempt(ctx, name, opts, m, hooked)
	if !isCause(ctx, err) && errors.Is(err, rpctypes.ErrPermissionDenied) {
		others := ""
		switch m.kind {
		case KindLockSet:
			others = ", and likewise for the other names"
		case KindTreeLock:
			name, _, _ = strings.Cut(name, "/") // the root's prefix is that of all nodes
		}
		err = fmt.Errorf("%w (it takes permission to read and write the keys with the prefix %q%s, and to write every key attached to the session's lease)",
			err, s.opts.Prefix+name+"/", others)
	}
	hooked.end(l, err)
	return l, err
}

// attempt acquires on the present lease. If that lease turns out to be gone, or of no use, it starts again on a new
// one.
func (s *Session) attempt(ctx context.Context, name string, opts lockOptions, m mode, hooked *hooked) (*Lock, error) {
	if !s.enterScope() {
		return nil, ErrClosed
	}
	defer s.leaveScope()
	var gone error // the last answer that a lease was gone
	for replaced := false; ; {
		var l *Lock
		c := &contender{name: name, lockOptions: opts, shared: m.kind == KindReadLock, try: m.try, hooked: hooked}
		var err error
		if ctx.Err() != nil {
			err = s.conn.Ended(ctx, context.Cause(ctx))
		} else {
			err = s.withLease(ctx, c, m)
		}
		if err == nil {
			l, err = c.contend(ctx, m)
		}
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil && gone != nil:
			return nil, fmt.Errorf("%w (last attempt: %s)", err, gone.Error())
		case c.g == nil || isCause(ctx, err):
			return nil, err
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			gone = err
		case errors.Is(err, rpctypes.ErrPermissionDenied) && !replaced && c.g.spoilt(ctx):
			replaced = true
			c.g.abandoned.Store(true)
			c.g.s.log.Warn("the lease is replaced: somebody has attached a key to it")
		default:
			return nil, err
		}
		c.g.lose(&LostError{Reason: ReasonLeaseGone, LeaseID: c.g.id})
	}
}

// isCause reports whether err is the cause of a context that has ended. A cause may be any error, also one of etcd's, and
// says nothing of the lease.
func isCause(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

// contend waits for c's turn and makes a handle. If that fails, or a hook panics, it takes c out of every queue.
func (c *contender) contend(ctx context.Context, m mode) (l *Lock, err error) {
	defer func() {
		if l == nil {
			c.abandon()
		}
	}()
	if m.enter != nil {
		c, err = m.enter(c, ctx)
	} else {
		err = c.take(ctx)
	}
	if err != nil {
		return nil, err
	}
	return c.hold(ctx)
}

// take waits for c's turn in the session, takes a place at the end of etcd's queue unless the turn came with one, and
// waits for its turn there; if c only tries, it fails instead of waiting. Those of a set it enters at once, and then
// waits for its turn in one after the other. Any order will do: everybody that it waits for entered before it, and
// everybody that enters later waits for it.
func (c *contender) take(ctx context.Context) (err error) {
	if c.try {
		return c.tryEnter(ctx)
	}
	var ahead []queue.Ahead
	if c.waiter != nil {
		if ahead, err = c.awaitTurn(ctx); err != nil {
			return err
		}
	}
	if c.entry.Rev == 0 {
		if ahead, err = c.enter(ctx); err != nil {
			return err
		}
	}
	for i, part := range c.all() {
		if ahead[i].None {
			continue
		}
		// A waiter whose lease, or any of whose keys, is gone must not wait for its turn to learn it. What was read of
		// the later queues may be old by now, which does no harm: the wait reads again under a new watch, and a kept
		// watch shows all that has happened since.
		c.each(func(c *contender) { c.g.guards.Add(&c.entry) })
		if err := part.await(ctx, ahead[i]); err != nil {
			return err
		}
	}
	return nil
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

// findHolder returns the error of TryLock when another acquisition of this session is ahead.
func (c *contender) findHolder(ctx context.Context) error {
	var holder *mvccpb.KeyValue
	_, err := c.g.while(ctx, func(a *etcd.Attempt) (err error) {
		holder, err = c.g.queue.Owner(a, c.g.s.opts.Prefix+c.name+"/")
		return err
	})
	switch {
	case err != nil:
		return err
	case holder != nil:
		return c.lockedBy(holder)
	}
	return &LockedError{Name: c.name, Owner: c.ahead.owner} // the acquisition ahead has not entered etcd's queue yet
}

func (c *contender) lockedBy(holder *mvccpb.KeyValue) error {
	token, _ := fence.NewToken(c.g.s.opts.Era, holder.CreateRevision) // 0 if the revision is out of the range of tokens
	return &LockedError{Name: nodeName(c.name), Owner: ownerIn(holder), Key: clip.To(string(holder.Key), maxKey), Token: token}
}

// ownerIn returns the text for people in a contender's key.
func ownerIn(kv *mvccpb.KeyValue) string {
	return clip.To(queue.Text(kv), maxOwner)
}

func (c *contender) await(ctx context.Context, ahead queue.Ahead) error {
	c.hooked.queued(ahead.Key)
	ctx, cancel := scope.Join(ctx, c.life)
	defer cancel()
	err := c.g.queue.Await(ctx, c.entry.Entry, ahead)
	if errors.Is(err, queue.ErrGone) {
		return c.loseKey(ctx)
	}
	return err
}

// enter takes a place at the end of the queue of each name of c's set.
func (c *contender) enter(ctx context.Context) (ahead []queue.Ahead, err error) {
	err = c.enterBy(ctx, func(a *etcd.Attempt, set []queue.Entry) (err error) {
		ahead, err = c.g.queue.Enter(a, set, c.owner)
		return err
	})
	return ahead, err
}

// enterBy enters by attempt, which sets the revisions of the entries that have entered. It does so again with other keys
// each time that somebody else has put one of those chosen.
func (c *contender) enterBy(ctx context.Context, attempt func(*etcd.Attempt, []queue.Entry) error) error {
	for {
		c.each(func(c *contender) {
			if c.entry.Key == "" {
				c.entry.Entry = c.g.take(c.name, c.mark, c.shared)
			}
		})
		set := c.entries()
		late, err := c.g.while(ctx, func(a *etcd.Attempt) error { return attempt(a, set) })
		for i, c := range c.all() {
			c.entry.Entry, c.late = set[i], c.late || late || set[i].Disowned
		}
		switch {
		case errors.Is(err, queue.ErrTaken):
			c.each((*contender).discard)
			continue
		case errors.Is(err, queue.ErrGone) && c.with != nil:
			for _, c := range c.all() {
				if c.entry.Rev == 0 {
					return c.loseKey(ctx)
				}
			}
		}
		return err
	}
}

// discard gives up c's key, which somebody else has put, or an earlier attempt that could not leave again. The key is
// not used again. If it may be ours, or an earlier request of ours may still arrive, the reaper deletes it.
func (c *contender) discard() {
	if c.late || c.entry.Rev != 0 {
		c.g.reaper.add(c.entry.Entry, true)
	} else {
		c.g.burn(c.entry.Entry)
	}
	c.entry.Entry, c.late = queue.Entry{}, false
}

// hold makes a handle of a contender that is first in the queue, if the lease is still valid by the local clock. If ctx
// has ended, the caller has given up and gets no lock.
func (c *contender) hold(ctx context.Context) (*Lock, error) {
	c.g.checkDeadline()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case c.life.Err() != nil:
		return nil, context.Cause(c.life)
	}
	token, err := fence.NewToken(c.g.s.opts.Era, c.entry.Rev)
	if err != nil {
		return nil, err
	}
	l := &Lock{contender: c, token: token}
	c.g.served.Store(true)
	c.each(func(c *contender) { c.g.guards.Add(&c.entry) })
	if c.maxHold > 0 {
		l.timer = time.AfterFunc(c.maxHold, func() {
			c.g.checkDeadline() // a loss that has already happened comes first
			c.end(ErrMaxHold)
		})
	}
	return l, nil
}

// abandon ends an acquisition that failed and clears whatever it may have left in the queue.
func (c *contender) abandon() {
	lost := c.lost()
	c.end(errAbandoned)
	asked := errors.Is(context.Cause(c.life), ErrAskedToRelease) // the request is in the key: the next one must not get that
	switch {
	case c.waiter != nil && c.withdraw(): // its turn never came
	case lost != nil, asked, c.with != nil:
		c.each(func(c *contender) {
			c.g.guards.Remove(&c.entry)
			c.clear()
		})
		c.pass()
	default: // the next acquisition may get the place in etcd's queue
		c.g.guards.Remove(&c.entry)
		c.g.give(c.inherit(c.g.turns.leave(c)))
	}
}

var errAbandoned = errors.New("lease: acquisition failed")
