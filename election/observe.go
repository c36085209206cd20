package election

import (
	"context"
	"fmt"
	"iter"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Observe yields the present leader of name, the zero [Leader] if there is none, and then every change: another leader,
// another value of the same one, none. The name is the full one, with the session's prefix if it has one.
//
// # What is seen
//
// The first leader is no older than the call: it is read from a majority of the members, however long ago others
// began to observe. Changes come in order, leaders of a millisecond included, and a token never after a larger one.
// The last leader yielded is the present one, as far as the members can be reached; while they cannot, nothing is yielded.
//
// A consumer that is more than 128 changes behind, or more than one that together have more than 1 MiB of values, is
// taken to the latest. So is everybody if changes were compacted before they could be read, as when no member could be
// reached for long. Otherwise what happened in such a time is yielded afterwards, change by change.
//
// # How it ends
//
// When ctx ends so does the iteration, without an error. The consumer may break out of the loop at any time; both
// stop everything that was started, before the loop is left. Observe survives broken streams, compactions, and members that are
// lost, lag or have no leader. What does not pass, such as an invalid name, a permission that is denied or a closed client, is
// yielded as an error once, with the zero Leader, and ends the iteration.
//
// # What it costs
//
// All observers of one client and name in a process share one watch: of the leader's key, so that nothing is received of
// what waiting candidates and locks or elections of nested names do. A new value costs an event; the end of a leader a
// read and another watch, which etcd may serve up to 100 ms late where other keys change all the time. While nobody leads, the
// watch covers all keys below the name. Each observer makes one read when it begins. The watches of one client
// share a stream, which is probed once in 2.5 to 5 seconds: one that has fallen silent is left, for another
// member where there is one, in 10 seconds or so. Nothing is polled.
//
// # What it cannot tell
//
// An observer learns of a change after it has happened: a leader that is yielded may have lost the leadership by
// then. Only the check of the token at the resource is certain; see package fence. A key whose lease was changed after it had been
// created can come to stand before a leader that has been yielded. That leader stays until it ends; then the key is shown
// as no leader, since its token is smaller.
// A cluster that was restored from a snapshot begins again with smaller revisions, and there so does Observe with
// smaller tokens: that is what a session's era is for. One that has passed the revision seen by then is found out when the
// watch is opened anew, but not where etcd's client has resumed it unseen: then at the next change.
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

// observe shows what happens until show returns false; then the error is nil.
func observe(ctx context.Context, client *clientv3.Client, prefix string, show func(Leader) bool) error {
	h, isNew := join(client, prefix) //nolint:contextcheck // what it starts is not this observer's alone
	defer leave(h)
	var (
		n int // of the sighting to come next. All that a new hub has seen, it has read since the call
		o observer
	)
	if !isNew {
		n, o.history = h.latest()
		// The hub may be behind, and not know it. It begins to be of use once it has seen a first revision: the read
		// below then sees no earlier one, so from its revision on nothing is missed.
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
	shown   bool  // last is something
	highest int64 // of all that were shown in this history
	history int
	from    int64 // the revision up to which it has read by itself, in this history
}

// take takes in a sighting, and reports whether it makes last another one, or the first.
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
