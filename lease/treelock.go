package lease

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
)

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
