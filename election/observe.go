package election

import (
	"context"
	"fmt"
	"iter"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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

// How far an observer may be behind before it skips to the latest.
const (
	maxSightings = 128     // changes
	maxBytes     = 1 << 20 // bytes of values, if there is more than one change
)

// sighting is who led from a revision on.
type sighting struct {
	leader  Leader
	rev     int64
	history int // revisions of different histories do not compare; see hub.history
}

// backlog keeps the latest sightings for observers that are behind. Sightings are numbered from 0.
type backlog struct {
	first int // the number of kept[0]
	kept  []sighting
	bytes int // of values in kept
}

// end is the number of the next sighting.
func (b *backlog) end() int { return b.first + len(b.kept) }

func (b *backlog) add(s sighting) {
	b.kept = append(b.kept, s)
	b.bytes += len(s.leader.Value)
	for len(b.kept) > 1 && (len(b.kept) > maxSightings || b.bytes > maxBytes) {
		b.bytes -= len(b.kept[0].leader.Value)
		b.kept[0] = sighting{} // frees its value, which the array would keep
		b.kept = b.kept[1:]
		b.first++
	}
}

// at returns sighting number n, or the latest if n is not kept any more, and the number of the next one. Ok is false if
// n is yet to come.
func (b *backlog) at(n int) (s sighting, next int, ok bool) {
	if n >= b.end() {
		return sighting{}, n, false
	}
	if n < b.first {
		n = b.end() - 1
	}
	return b.kept[n-b.first], n + 1, true
}
