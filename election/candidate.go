package election

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// preferAfter is how long a candidate waits before it asks a leader of lower priority to hand over, and how long a new leader
// leads before it looks for a candidate to prefer: one that comes and goes costs nobody anything.
const preferAfter = time.Second

// candidate is one side of an agreement about priorities. A candidate writes the key of a leader of lower priority, without a
// change, to ask it to hand over. A leader looks for such candidates when its key was written, and once by itself.
type candidate struct {
	priority int
	log      *slog.Logger

	waited bool          // somebody was ahead, who may have been asked in its stead
	asked  chan struct{} // of capacity 1: its key was written
	rev    atomic.Int64  // the latest revision at which it was
}

// mark begins the suffix of a candidate's key. Contenders of other kinds keep their places in the queue.
func mark(priority int) string { return "p" + strconv.Itoa(priority) + "-" }

// priorityOf is the priority in a key below prefix; false if it is no candidate's.
func priorityOf(prefix string, key []byte) (int, bool) {
	child := strings.TrimPrefix(string(key), prefix)
	_, suffix, _ := strings.Cut(child, "-")
	mark, _, found := strings.Cut(suffix, "-")
	if !found || !strings.HasPrefix(mark, "p") || strings.Contains(child, "/") {
		return 0, false
	}
	priority, err := strconv.Atoi(mark[1:])
	return priority, err == nil
}

// waits is called while the candidate waits in the place e. It asks a leader of lower priority to hand over, once; whoever
// comes to lead after that looks by itself.
func (c *candidate) waits(ctx context.Context, q *queue.Queue, e queue.Entry) {
	c.waited = true
	if c.priority == 0 {
		return
	}
	select {
	case <-time.After(preferAfter):
	case <-ctx.Done():
		return
	}
	err := q.Conn.Do(ctx, q.Bound, func(a *etcd.Attempt) error {
		leader, err := q.Owner(a, e.Prefix)
		if err != nil || leader == nil {
			return err
		}
		if theirs, is := priorityOf(e.Prefix, leader.Key); !is || theirs >= c.priority {
			return nil
		}
		// If either has gone meanwhile, the next leader looks by itself. A request that is late asks nobody else.
		leads := clientv3.Compare(clientv3.CreateRevision(string(leader.Key)), "=", leader.CreateRevision)
		_, err = a.Txn([]clientv3.Cmp{leads, e.Held()}, []clientv3.Op{rewrite(string(leader.Key))}, nil)
		return err
	})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("a leader of lower priority was not asked to hand over", "err", err)
	}
}

// touched is called when the candidate's key was written at rev.
func (c *candidate) touched(rev int64) {
	if c.rev.Swap(rev) == rev { // known
		return
	}
	select {
	case c.asked <- struct{}{}:
	default:
	}
}

// awaitPreferred waits until a candidate of a higher priority waits that can be handed over to.
func (l *Leadership) awaitPreferred(ctx context.Context) error {
	var look <-chan time.Time
	if l.as.waited {
		look = time.After(preferAfter)
	}
	for {
		select {
		case <-look:
		case <-l.as.asked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := l.preferred(ctx); !errors.Is(err, ErrNoCandidate) {
			return err
		}
	}
}

// preferred returns nil when a candidate of a higher priority can be handed over to, and waits for those before it that keep
// their places. The error matches ErrNoCandidate if there is no such candidate.
func (l *Leadership) preferred(ctx context.Context) error {
	var pause etcd.Backoff // for a member that breaks the watch each time
	for {
		_, err := l.follow(ctx, choice{above: l.as.priority})
		blocked, ok := errors.AsType[*blockedError](err)
		if !ok {
			return err
		}
		if err := l.hold.Queue.AwaitEnd(ctx, blocked.by); err != nil {
			return err
		}
		if err := pause.Sleep(ctx); err != nil {
			return err
		}
	}
}
