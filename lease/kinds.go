package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
)

// ReadLock is a lock that its holder shares with other readers: a ReadLock exists only after a successful acquisition.
// Its context ends as that of a [Lock] does, and its methods are safe for concurrent use. The context carries the token
// for [fence.ReadFromContext], and none for [fence.FromContext]. Unlock it when you are done.
type ReadLock struct{ held }

// RLock waits until it holds the lock called name as a reader, and returns it. Readers of one name hold it at the same
// time. Its writers, each of which excludes all others, are [Session.Lock], [Session.Do], concurrency.Mutex of etcd and
// etcdctl lock.
//
// Readers and writers are served in the order in which they enter etcd's queue, see the package's section on order. Of
// the writers of one session only the first has a place there: a reader of that session overtakes the others.
//
// A read lock is not reentrant: if a writer waits, a second RLock of the same caller waits behind that writer, which
// waits for the first. A read lock cannot be turned into a write lock, nor a write lock into a read lock: two readers
// that waited to become writers would wait for each other. Unlock it, and lock again. Names, ctx, options and errors
// are those of [Session.Lock].
func (s *Session) RLock(ctx context.Context, name string, opts ...LockOption) (*ReadLock, error) {
	return grip[ReadLock](s.acquire(ctx, name, opts, mode{kind: KindReadLock}))
}

// TryRLock takes the lock called name as a reader if no writer holds it or waits for it. Otherwise it returns at once a
// [*LockedError], which matches [ErrLocked] and names the oldest of these writers. Other errors are those of
// [Session.Lock].
func (s *Session) TryRLock(ctx context.Context, name string, opts ...LockOption) (*ReadLock, error) {
	return grip[ReadLock](s.acquire(ctx, name, opts, mode{kind: KindReadLock, try: true}))
}

// RDo is [Session.Do] with the lock taken as [Session.RLock] takes it. The context that fn gets carries the token for
// [fence.ReadFromContext]. It carries none for [fence.FromContext], not even the token of a lock that the caller holds.
func (s *Session) RDo(ctx context.Context, name string, fn func(ctx context.Context, token fence.ReadToken) error, opts ...LockOption) error {
	if fn == nil {
		return errNoFunction
	}
	return s.do(ctx, name, func() (*Lock, error) { return s.acquire(ctx, name, opts, mode{kind: KindReadLock}) },
		func(ctx context.Context, token fence.Token) error { return fn(ctx, fence.ReadToken(token)) })
}

// Token returns the fencing token of this hold: larger than that of every earlier writer of the name. Once it is used
// at a resource that keeps a mark of readers, that resource refuses the writers before this hold; see package fence. It
// is fixed at the grant.
func (l *ReadLock) Token() fence.ReadToken { return fence.ReadToken(l.lock.token) }

// Name returns the name that was locked, without the session's prefix.
func (l *ReadLock) Name() string { return l.lock.Name() }

// Key returns the hold's key in etcd.
func (l *ReadLock) Key() string { return l.lock.Key() }

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

// given returns the names of c's set as the caller gave them, each once.
func (c *contender) given() (names []string) {
	for _, c := range c.all() {
		names = append(names, c.name)
	}
	return names
}

// Names returns the names that were locked, without the session's prefix, each once.
func (l *LockSet) Names() []string { return l.lock.given() }

// TreeLock is the hold of a node of a tree and of everything below it: a TreeLock exists only after a successful
// acquisition. Its context ends as that of a [Lock] does, and its methods are safe for concurrent use. Its token is
// larger than that of every earlier holder of the node, or of a node above or below it. For [fence.ForLock] the name of
// the node "a/b" is "a/~b", behind the session's prefix. Unlock it when you are done.
type TreeLock struct{ held }

// LockTree waits until it holds the node of a tree with this path, and all nodes below it, and returns the hold. It
// excludes holders of nodes above and below, and they exclude it. Holders of other branches hold them at the same time.
//
// A path is a name, whose parts are the nodes from the root on, at most 64: "a/b/c" is below "a/b", which is below "a".
// LockTree enters one queue for each part, in one transaction as [Session.LockAll] does: as a reader for the nodes
// above, and exclusively for the last. So it cannot deadlock with other paths, and is served in order at each node.
// etcdctl lock and Session.Lock of the root exclude the whole tree; so do callers that wait in [Session.Permit] on the
// root. Session.Lock("a/b") is another lock than that of node "a/b".
//
// Send the token with writes to the node and below. The resource checks each of them at the path of the holder's own
// node, by the verbs for paths, [fence.Guard.ClaimPath] and those of packages sqlfence and pgxfence: the holders of the
// nodes below check their writes there too. To other verbs, the holder of a node above or below has another lock. Ctx
// and errors are those of [Session.Lock].
func (s *Session) LockTree(ctx context.Context, path string) (*TreeLock, error) {
	return grip[TreeLock](s.lockTree(ctx, path, false))
}

// TryLockTree takes the node and everything below it if nobody holds or waits for one of these nodes or for a node
// above. Otherwise it returns at once an error that matches [ErrLocked]; errors.As finds the first holder, a
// [*LockedError], whose Name is that of a node on the path, from the root down. Other errors are those of
// [Session.LockTree].
func (s *Session) TryLockTree(ctx context.Context, path string) (*TreeLock, error) {
	return grip[TreeLock](s.lockTree(ctx, path, true))
}

// DoTree is [Session.Do] with the lock taken as [Session.LockTree] takes it.
func (s *Session) DoTree(ctx context.Context, path string, fn func(ctx context.Context, token fence.Token) error) error {
	return s.do(ctx, path, func() (*Lock, error) { return s.lockTree(ctx, path, false) }, fn)
}

func (s *Session) lockTree(ctx context.Context, path string, try bool) (*Lock, error) {
	if err := queue.CheckName(path); err != nil {
		return nil, fmt.Errorf("lease: path %w", err)
	}
	// Each part but the first gets a "~" in front, which keeps the nodes below out of the range of a node's own queue.
	parts := strings.Split(path, "/")
	if len(parts) > queue.MostInSet {
		return nil, fmt.Errorf("lease: path has %d parts, want 1 to %d", len(parts), queue.MostInSet)
	}
	var names []string // from the node up
	for i := range parts {
		names = append([]string{strings.Join(parts[:i+1], "/~")}, names...)
	}
	return s.obtainAll(ctx, names, mode{kind: KindTreeLock, names: []string{path}, try: try})
}

// label is c's name for errors: its name, the names of a set, or the path of a tree.
func (c *contender) label() string {
	if c.with == nil || c.with[0].shared {
		return strconv.Quote(nodeName(c.name))
	}
	return fmt.Sprintf("%q", c.given())
}

// nodeName returns the name of a lock as its caller knows it: the path for a node of a tree, the name itself for all
// others.
func nodeName(name string) string {
	if queue.IsSlotName(name) {
		return name
	}
	return strings.ReplaceAll(name, "/~", "/")
}

// Path returns the path that was locked, without the session's prefix.
func (l *TreeLock) Path() string { return nodeName(l.lock.name) }

// held has the methods of a [Lock] that the other kinds of locks share.
type held struct{ lock *Lock }

// grip makes the handle of another kind of lock, if the acquisition has succeeded.
func grip[H ~struct{ held }](l *Lock, err error) (*H, error) {
	if err != nil {
		return nil, err
	}
	return &H{held{l}}, nil
}

// Token returns the fencing token of this hold. It is fixed at the grant.
func (h *held) Token() fence.Token { return h.lock.Token() }

// Context is as [Lock.Context].
func (h *held) Context() context.Context { return h.lock.Context() }

// Err is as [Lock.Err].
func (h *held) Err() error { return h.lock.Err() }

// Deadline is as [Lock.Deadline].
func (h *held) Deadline() time.Time { return h.lock.Deadline() }

// Unlock is as [Lock.Unlock].
func (h *held) Unlock(ctx context.Context) error { return h.lock.Unlock(ctx) }

// Explain is as [Lock.Explain].
func (h *held) Explain(ctx context.Context, err error) error { return h.lock.Explain(ctx, err) }
