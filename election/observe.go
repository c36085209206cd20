package election

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// readAttempt bounds the first attempt of a read; see etcd.Conn.Do.
const readAttempt = 2 * time.Second

// ErrNoLeader says that nobody leads.
var ErrNoLeader = errors.New("election: no leader")

// Leader is a leader, or a candidate, as others see it. The zero Leader means that nobody leads. Leaders compare with
// ==.
type Leader struct {
	// Value is the candidate's [Options].Value, or what the leader has proclaimed since.
	Value string
	// Revision is the create revision of Key, which is the leader's fencing token in era 0. etcd does not know a
	// session's era: with another era, the leader's token is made of that era and this revision.
	Revision int64
	// Key is the leader's key in etcd.
	Key string
	// Lease is the lease that Key is attached to.
	Lease clientv3.LeaseID
}

// None reports whether l is the zero Leader: nobody leads.
func (l Leader) None() bool { return l.Revision == 0 }

// Current returns the leader of name, or an error that matches [ErrNoLeader] if nobody leads. The name includes the
// session's prefix, if it has one.
//
// It is a linearizable read: if one leader leads from the call to the return, Current returns that leader. It retries
// transient failures until ctx ends; the error then wraps ctx's cause. If a retry cannot help, as when permission is
// denied, the error is etcd's. Current ignores keys below the name that are no contenders; see package lease.
func Current(ctx context.Context, client *clientv3.Client, name string) (Leader, error) {
	if err := checkTarget(client, name); err != nil {
		return Leader{}, err
	}
	l, _, err := present(ctx, client, name+"/", Leader{})
	if err == nil && l.None() {
		err = ErrNoLeader
	}
	if err != nil {
		return Leader{}, fmt.Errorf("election: current leader of %q: %w", name, err)
	}
	return l, nil
}

// Candidates returns the leader of name, followed by the waiting candidates in their order. The list is empty if nobody
// leads. It is a linearizable read of the keys below the name, at one revision; except for [ErrNoLeader] its errors are
// those of [Current]. It does not read the values of nested names.
func Candidates(ctx context.Context, client *clientv3.Client, name string) ([]Leader, error) {
	if err := checkTarget(client, name); err != nil {
		return nil, err
	}
	var kvs []*mvccpb.KeyValue
	err := etcd.Of(client).Do(ctx, readAttempt, func(a *etcd.Attempt) (err error) {
		kvs, _, err = queue.Standing(a, name+"/", false, false)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("election: candidates of %q: %w", name, err)
	}
	all := make([]Leader, len(kvs))
	for i, kv := range kvs {
		all[i] = newLeader(kv)
	}
	return all, nil
}

// checkTarget refuses a bad client and a bad name before anything is sent.
func checkTarget(client *clientv3.Client, name string) error {
	if err := etcd.CheckClient(client); err != nil {
		return fmt.Errorf("election: %w", err)
	}
	if err := queue.CheckFullName(name); err != nil {
		return fmt.Errorf("election: name %w", err)
	}
	return nil
}

// present is leading with retries until ctx ends. The revision is no older than the call.
func present(ctx context.Context, client *clientv3.Client, prefix string, known Leader) (l Leader, rev int64, err error) {
	err = etcd.Of(client).Do(ctx, readAttempt, func(a *etcd.Attempt) (err error) {
		l, rev, err = leading(a, prefix, known)
		return err
	})
	return l, rev, err
}

// leading returns the leader, the oldest contender, or none, and the revision of the read, which opts may set. It is
// one attempt.
//
// Known is the leader so far. If an older key was written after known had been created, the write has put the key back
// on a lease, and its contender comes to stand before known. Then known stays the leader until its own end, since an
// observer that watches only known's key sees nothing else.
func leading(a *etcd.Attempt, prefix string, known Leader, opts ...clientv3.OpOption) (Leader, int64, error) {
	kv, rev, err := oldest(a, prefix, opts...)
	if err != nil || kv == nil || kv.CreateRevision >= known.Revision || kv.ModRevision <= known.Revision {
		return newLeader(kv), rev, err
	}
	resp, err := a.Get(known.Key, opts...)
	if err != nil {
		return Leader{}, 0, err
	}
	if len(resp.Kvs) > 0 && queue.Contends(prefix, resp.Kvs[0]) && newLeader(resp.Kvs[0]).Revision == known.Revision {
		return newLeader(resp.Kvs[0]), resp.Header.Revision, nil
	}
	return newLeader(kv), rev, nil
}

// oldest returns the oldest contender, nil if there is none, and the revision of the read, which opts may set. It reads
// one key, unless the oldest key is no contender. It is one attempt.
func oldest(a *etcd.Attempt, prefix string, opts ...clientv3.OpOption) (*mvccpb.KeyValue, int64, error) {
	firstCreated := append(clientv3.WithFirstCreate(), queue.InQueue(prefix))
	resp, err := a.Get(prefix, append(firstCreated, opts...)...)
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 || queue.Contends(prefix, resp.Kvs[0]) {
		return first(resp.Kvs), resp.Header.Revision, nil
	}
	all, rev, err := queue.Standing(a, prefix, false, true, opts...)
	return first(all), rev, err
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// newLeader describes a contender to others; nil is nobody.
func newLeader(kv *mvccpb.KeyValue) Leader {
	if kv == nil {
		return Leader{}
	}
	return Leader{
		Value:    queue.Text(kv),
		Revision: kv.CreateRevision,
		Key:      string(kv.Key),
		Lease:    clientv3.LeaseID(kv.Lease),
	}
}

// Observe yields the present leader of name, the zero [Leader] if nobody leads, and then every change: another leader,
// another value of the same leader, or nobody. The name includes the session's prefix, if it has one.
//
// # What is seen
//
// The first leader is no older than the call: Observe gets it by a linearizable read, however long ago other observers
// began. Changes come in order, even leaders of a millisecond, and tokens never decrease. The last leader yielded
// is the present one as long as the members can be reached; while they cannot, Observe yields nothing.
//
// A consumer that is more than 128 changes behind skips to the latest, and so does a consumer that is several changes
// behind whose values together have more than 1 MiB. All consumers skip to the latest if changes were compacted before
// they could be read, as when no member could be reached for long. Otherwise Observe yields what happened in such a
// time afterwards, change by change.
//
// # How it ends
//
// When ctx ends, the iteration ends without an error. The consumer may break out of the loop at any time. Either way
// everything that this observer started has stopped when the loop is left. Observe survives broken streams,
// compactions, and members that are lost, lag or have no leader. If a retry cannot help, as with an invalid name, a
// permission that is denied or a closed client, Observe yields the error once, with the zero Leader, and ends.
//
// # What it costs
//
// All observers of one client and name in a process share one watch, on the leader's key, so they receive nothing of
// waiting candidates or of nested names. A new value costs an event. Another leader costs a read and another watch,
// which etcd may serve up to 100 ms late if other keys change all the time. So if leaders come and go more than ten
// times a second, Observe falls behind, and catches up when they have slowed down. While nobody leads, the watch covers
// all keys below the name. Each observer makes one read when it begins. The watches of one client share a stream, which
// is probed once in 2.5 to 5 seconds. If the stream falls silent, it is replaced in about 10 seconds, by a stream to
// another member if there is one. Observe does not poll.
//
// # What it cannot tell
//
// An observer learns of a change after it has happened: a leader may have lost the leadership by the time it is
// yielded. Only the check of the token at the resource is certain; see package fence.
//
// If somebody changes the lease of an old key, that key can come to stand before a leader that was already yielded.
// Observe keeps that leader until it ends, and then shows the key as no leader, since its token is smaller. If the end
// was compacted before it could be read, that looks like a restore, and Observe yields the key.
//
// A cluster that was restored from a snapshot begins again with smaller revisions, and Observe then yields smaller
// tokens: that is what a session's era is for. If the restored cluster has already passed the revision that was seen
// last, Observe notices the restore when it opens its next watch. If etcd's client has resumed the watch by itself,
// Observe notices it at the next change.
//
// The iterator may be used more than once, also concurrently; each use is a separate observer.
func Observe(ctx context.Context, client *clientv3.Client, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		err := checkTarget(client, name)
		if err == nil {
			err = observe(ctx, client, name+"/", func(l Leader) bool { return yield(l, nil) })
			if err == nil || ctx.Err() != nil {
				return
			}
			err = fmt.Errorf("election: observe %q: %w", name, err)
		}
		yield(Leader{}, err)
	}
}

// observe calls show for each change until show returns false; then the error is nil.
func observe(ctx context.Context, client *clientv3.Client, prefix string, show func(Leader) bool) error {
	h, isNew := join(client, prefix) // other observers share what it starts
	defer leave(h)
	var (
		n int // the number of the next sighting. All sightings of a new hub are younger than the call
		o observer
	)
	if !isNew {
		n, o.history = h.latest()
		// The hub may be behind without knowing it, so this observer reads by itself. It first waits until the hub has
		// seen some revision: its own read then sees that revision or a later one, and the hub shows all that follows.
		latest, _, err := h.next(ctx, max(n-1, 0))
		if err != nil {
			return err
		}
		l, rev, err := present(ctx, client, prefix, latest.leader)
		if err != nil {
			return err
		}
		if o.take(sighting{l, rev, o.history}) && !show(o.last) {
			return nil
		}
		o.from = rev
	}
	for ctx.Err() == nil {
		s, after, err := h.next(ctx, n)
		if err != nil {
			return err
		}
		n = after
		if o.take(s) && !show(o.last) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// observer is what one use of Observe has shown.
type observer struct {
	last    Leader
	shown   bool  // last was shown
	highest int64 // the highest token shown in this history
	history int
	from    int64 // sightings up to this revision of this history are covered by its own read
}

// take records a sighting, and reports whether last has changed and is to be shown.
func (o *observer) take(s sighting) bool {
	if s.history != o.history {
		*o = observer{last: o.last, shown: o.shown, history: s.history}
	}
	if s.rev <= o.from {
		return false
	}
	l := s.leader
	if l.Revision < o.highest {
		l = Leader{}
	}
	o.highest = max(o.highest, l.Revision)
	if o.shown && l == o.last {
		return false
	}
	o.last, o.shown = l, true
	return true
}
