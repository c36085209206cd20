package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
)

// The order of the queue, and of the tokens, is the order of the create revisions: no key can move forward. To hand
// over to a candidate that is not next, a leader deletes, in the transaction in which it leaves, the keys of the
// candidates in between. Each of these enters again at the end.

// Transfer resigns in favour of the first waiting candidate with the given value: nobody else leads in between.
// Candidates that wait before it enter again at the end, whatever their priority; see the package's section on order.
//
// Transfer looks for the candidate first. If that fails, Transfer leaves the leadership as it is. The error then
// matches [ErrNoCandidate] if no candidate with the value waits, [ErrBlocked] if a lock or a candidate of another
// library waits before it, [lease.ErrLost], [ErrResigned] or [lease.ErrAskedToRelease] if the leadership has ended, or
// wraps ctx's cause.
//
// Otherwise the leadership ends, and Transfer returns the errors of Resign. If the candidate leaves at the last moment,
// the next one in the queue leads, and the error matches ErrNoCandidate or ErrBlocked. If etcd's database is full,
// nobody can be passed: the next one in the queue leads, and the error is etcd's. After another error of etcd's, or if
// ctx ends before the server has confirmed, either of the two may lead.
//
// A value has 1 to 4,096 bytes. A lock is no candidate, whatever its value. Ctx may be the leadership's own, as for
// Resign.
//
// Under [Run], Transfer ends the context and returns: Run releases the key when lead has returned.
func (l *Leadership) Transfer(ctx context.Context, value string) error {
	// An empty value chooses no candidate: locks of etcd's own package have it.
	if err := checkValue("value", value, 1); err != nil {
		return err
	}
	if err := l.transfer(ctx, choice{value: value}); err != nil {
		return fmt.Errorf("election: transfer %q: %w", l.name, err)
	}
	return nil
}

func (l *Leadership) transfer(ctx context.Context, to choice) error {
	if err := l.Err(); err != nil {
		return err
	}
	look, cancel := scope.Join(ctx, l.ctx)
	_, err := l.findHeir(look, to)
	cancel()
	if err != nil {
		// Another call may have ended the leadership meanwhile, and taken the candidate out of the queue.
		if ended := l.Err(); ended != nil {
			return ended
		}
		return err
	}
	select {
	case l.to <- to:
	default: // another Transfer, or prefer, came first
		return ErrResigned
	}
	missed, err := l.finish(ctx)
	if missed != nil {
		missed = fmt.Errorf("resigned, but not to %q: %w", to.value, missed)
	}
	return errors.Join(missed, err)
}

// choice says whom a leader hands over to.
type choice struct {
	// value chooses the first candidate with it, of etcd's own election package too. If value is empty, the choice is
	// the first candidate of the highest priority, which must be above the priority above.
	value string
	above int
}

// heir is the candidate that follows a leader, and the candidates between the two.
type heir struct {
	next    queue.Entry
	between []queue.Entry
}

// findHeir reads the queue and finds the chosen candidate. Its answer stays complete: contenders that enter later stand
// behind the heir. The error matches ErrNoCandidate or ErrBlocked, or comes from the read.
func (l *Leadership) findHeir(ctx context.Context, c choice) (heir, error) {
	var kvs []*mvccpb.KeyValue
	e := l.hold.Entry
	_, err := l.hold.While(ctx, func(a *etcd.Attempt) error {
		keys, _, err := queue.Children(a, e.Prefix, clientv3.WithMinCreateRev(e.Rev+1))
		if err != nil || c.value == "" && highest(keys) <= c.above {
			return err
		}
		kvs, err = queue.Contenders(a, keys, false)
		return err
	})
	if err != nil {
		return heir{}, err
	}
	return c.among(e.Prefix, kvs)
}

// highest is the highest priority in keys, -1 if no key is a candidate's.
func highest(keys []*mvccpb.KeyValue) int {
	most := -1
	for _, kv := range keys {
		if priority, candidate := priorityOf(kv.Key); candidate {
			most = max(most, priority)
		}
	}
	return most
}

// among finds the heir in a queue without its leader, oldest first.
func (c choice) among(prefix string, kvs []*mvccpb.KeyValue) (heir, error) {
	var h heir
	var passed []queue.Entry
	var blocker error // the first contender that cannot be passed
	above := c.above
	for _, kv := range kvs {
		priority, candidate := priorityOf(kv.Key)
		wanted := candidate && priority > above
		if c.value != "" {
			wanted = queue.Text(kv) == c.value && h.next.Rev == 0 && (candidate || ofEtcd(kv))
		}
		entry := queue.Entry{Prefix: prefix, Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease), Rev: kv.CreateRevision}
		switch {
		case wanted && blocker == nil:
			h.next, h.between, above = entry, slices.Clip(passed), priority
		case wanted && h.next.Rev == 0:
			return heir{}, blocker
		}
		switch {
		case candidate:
			passed = append(passed, entry)
		case blocker == nil:
			blocker = fmt.Errorf("%w: key %q", ErrBlocked, clip.To(entry.Key, 256)) // somebody else has written it
		}
	}
	if h.next.Rev == 0 {
		return heir{}, ErrNoCandidate
	}
	return h, nil
}

// ofEtcd reports whether a contender may be a candidate of etcd's own election package: its key has neither a class nor
// a suffix. The key of etcd's own lock looks the same, but its value is empty, which Transfer refuses.
func ofEtcd(kv *mvccpb.KeyValue) bool {
	form, _ := queue.FormOf(kv.Key)
	return form.Bare && form.Class == ""
}

// handOver deletes the leader's key and those of the candidates in between, so that the chosen candidate leads next. If
// another one leads next, missed says why. If deleted is false, the leader's key has not been deleted here.
func (l *Leadership) handOver(ctx context.Context, to choice) (deleted bool, missed, err error) {
	for {
		h, missed := l.findHeir(ctx, to)
		if missed != nil {
			return false, missed, nil
		}
		var d departure
		late, err := l.hold.While(ctx, func(a *etcd.Attempt) error { return d.attempt(a, l.hold.Entry, h) })
		switch {
		case err != nil || d.done || late && d.sent && d.gone:
			return d.sent, d.missed, err
		case d.gone: // or taken off its lease: the next candidate leads already
			return false, ErrNoCandidate, nil
		}
		// The chosen candidate has left meanwhile, or has entered again with a new key: look for it again.
	}
}

// departure is what the attempts at one handover have shown.
type departure struct {
	done   bool  // the leader's key was deleted
	sent   bool  // the deletion of the leader's key was sent
	missed error // why the heir may not lead next if that deletion was done
	gone   bool  // the last attempt found that the leader's key was already deleted, or taken off its lease
}

// attempt deletes the leader's key, e, and the keys between it and the heir, provided that e and the heir are still in
// the queue. The heir then leads next. While etcd is out of space attempt deletes e's key alone, and missed says why
// the heir may not be next. If it is neither done nor gone, e's key is unchanged.
//
// It is one attempt. A repetition is safe, since every step depends on e's key, but gone may then mean that an earlier
// attempt, whose answer was lost, has done it, or a copy of this one.
func (d *departure) attempt(a *etcd.Attempt, e queue.Entry, h heir) error {
	// A key that somebody has taken off its lease keeps its create revision, but is no contender any more: another
	// candidate leads already, and e may not pass anybody. The heir's lease need not be compared: if its key has lost
	// its lease, the next contender leads.
	both := []clientv3.Cmp{
		e.Held(), clientv3.Compare(clientv3.LeaseValue(e.Key), "=", e.Lease),
		h.next.Held(),
	}
	do := func(ops ...clientv3.Op) error {
		resp, err := a.Txn(both, ops, []clientv3.Op{clientv3.OpGet(e.Key)})
		if err != nil || resp.Succeeded {
			return err
		}
		kv := first(resp.Responses[0].GetResponseRange().Kvs)
		d.gone = kv == nil || kv.CreateRevision != e.Rev || kv.Lease != int64(e.Lease)
		return etcd.ErrNotDone
	}
	var err, full error
	if len(h.between) > 0 {
		// A waiter behind e takes e's deletion for its own turn, without a read, unless e was written before: see
		// queue.AwaitOwn. This write makes the deleted waiters look for their own keys first.
		err = do(rewrite(e.Key))
		if errors.Is(err, rpctypes.ErrNoSpace) { // keys can be deleted, but not written: pass nobody
			h.between, full, err = nil, err, nil
		}
	}
	if err == nil {
		// Many keys take several transactions. E's key is in the last of them, so e leads until then.
		_, err = etcd.InParts(append(slices.Clip(h.between), e), etcd.PartSize, 1, func(part []queue.Entry) error {
			ops := make([]clientv3.Op, len(part))
			for i, b := range part {
				ops[i] = clientv3.OpTxn([]clientv3.Cmp{b.Held()}, []clientv3.Op{clientv3.OpDelete(b.Key)}, nil)
			}
			err := do(ops...)
			// A repetition that finds it done leaves what is known of the attempt before: that one has done it.
			if part[len(part)-1].Key == e.Key && (!d.sent || !errors.Is(err, etcd.ErrNotDone)) {
				d.done, d.sent, d.missed = err == nil, true, full
			}
			return err
		})
	}
	if errors.Is(err, etcd.ErrNotDone) {
		return nil
	}
	return err
}

// rewrite writes a key without changing its value or its lease.
func rewrite(key string) clientv3.Op {
	return clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
}

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

// prefer ends the leadership once it can be handed over to a candidate of a higher priority.
func (l *Leadership) prefer() {
	var look <-chan time.Time
	if l.as.waited {
		look = time.After(preferAfter)
	}
	to, pause := choice{above: l.opts.Priority}, etcd.Backoff{Longest: l.hold.Queue.Bound}
	for {
		select {
		case <-look:
		case <-l.as.asked:
		case <-l.ctx.Done():
			return
		}
		_, err := l.findHeir(l.ctx, to)
		switch {
		case err == nil:
			select {
			case l.to <- to:
				_ = l.lock.Err() // ends l.ctx with the loss if the deadline has passed
				l.end(ErrHandedOver)
				l.log.Info("hands over to a candidate of a higher priority")
			default: // a Transfer came first
			}
			return
		case errors.Is(err, ErrNoCandidate):
			pause.Reset()
			continue
		case !errors.Is(err, ErrBlocked) && l.ctx.Err() == nil:
			l.as.refused(l.log, "look for a candidate of a higher priority", err)
		}
		look = time.After(pause.Next()) // until the one in between has gone, or etcd answers
	}
}
