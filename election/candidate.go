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

// preferAfter is how long a candidate waits before it asks a leader of lower priority to hand over, and how long a new
// leader leads before it looks for a candidate to prefer. So a candidate that leaves before that costs the others
// nothing.
const preferAfter = time.Second

// candidate is one side of the protocol of priorities. To ask a leader of lower priority to hand over, a waiting
// candidate writes the leader's key without changing it. A leader looks for candidates of a higher priority whenever
// its key was written, and once after preferAfter if an earlier leader may have been asked instead.
type candidate struct {
	priority int
	log      *slog.Logger

	waited bool          // an earlier leader was ahead, and may have been asked instead of this candidate
	asked  chan struct{} // of capacity 1: this candidate's key was written
	rev    atomic.Int64  // the latest revision at which it was written
	warned time.Time     // when a refusal was last reported
}

// refused reports, at most once a minute, what the caller tries again whatever the error: a missing permission may be
// back in a moment.
func (c *candidate) refused(log *slog.Logger, what string, err error) {
	if now := time.Now(); now.Sub(c.warned) >= time.Minute {
		c.warned = now
		log.Warn("cannot "+what+", and tries again", "err", err)
	}
}

// mark begins the suffix of a candidate's key. A contender without a mark keeps its place in the queue.
func mark(priority int) string { return "p" + strconv.Itoa(priority) + "-" }

// priorityOf returns the priority in the key of a contender, and false if the contender is not a candidate.
func priorityOf(key []byte) (int, bool) {
	form, _ := queue.FormOf(key)
	mark, _, found := strings.Cut(form.Suffix, "-")
	if !found || !strings.HasPrefix(mark, "p") {
		return 0, false
	}
	priority, err := strconv.Atoi(mark[1:])
	return priority, err == nil
}

// waits runs while the candidate waits in the place e. It asks a leader of lower priority to hand over, once: a later
// leader looks for this candidate by itself.
func (c *candidate) waits(ctx context.Context, q *queue.Queue, e queue.Entry) {
	c.waited = true
	if c.priority == 0 {
		return
	}
	pause := etcd.Backoff{Longest: q.Bound}
	for wait := preferAfter; ; wait = pause.Next() {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		err := q.Conn.Do(ctx, q.Bound, func(a *etcd.Attempt) error { return c.ask(a, q, e) })
		if err == nil || ctx.Err() != nil {
			return
		}
		c.refused(c.log, "ask the leader to hand over", err)
	}
}

// ask asks the leader to hand over to the candidate in the place e, if the leader's priority is lower.
func (c *candidate) ask(a *etcd.Attempt, q *queue.Queue, e queue.Entry) error {
	leader, err := q.Owner(a, e.Prefix)
	if err != nil || leader == nil {
		return err
	}
	if theirs, is := priorityOf(leader.Key); !is || theirs >= c.priority {
		return nil
	}
	// If the leader or e has gone meanwhile, nothing is written: a late request must not ask another leader, and the
	// next leader looks by itself.
	leads := clientv3.Compare(clientv3.CreateRevision(string(leader.Key)), "=", leader.CreateRevision)
	_, err = a.Txn([]clientv3.Cmp{leads, e.Held()}, []clientv3.Op{rewrite(string(leader.Key))}, nil)
	return err
}

// touched is called, perhaps more than once, when the candidate's key was written at rev.
func (c *candidate) touched(rev int64) {
	if c.rev.Swap(rev) == rev { // already reported
		return
	}
	select {
	case c.asked <- struct{}{}:
	default:
	}
}

// awaitPreferred returns nil when the leadership can be handed over to a candidate of a higher priority. It returns an
// error only if ctx ends.
func (l *Leadership) awaitPreferred(ctx context.Context) error {
	var look <-chan time.Time
	if l.as.waited {
		look = time.After(preferAfter)
	}
	pause := etcd.Backoff{Longest: l.hold.Queue.Bound}
	for {
		select {
		case <-look:
		case <-l.as.asked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		_, err := l.findHeir(ctx, choice{above: l.as.priority})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrNoCandidate):
			pause.Reset()
			continue
		case !errors.Is(err, ErrBlocked) && ctx.Err() == nil:
			l.as.refused(l.log, "look for a candidate of a higher priority", err)
		}
		look = time.After(pause.Next()) // until the one in between has gone, or etcd answers
	}
}
