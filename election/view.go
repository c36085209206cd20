package election

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

// view is a queue as it was at a revision, kept up to date by the events of a watch.
type view struct {
	prefix string
	rev    int64             // everything up to here is in it; 0: nothing is known
	at     map[string]Leader // the contenders, by key
}

// reset makes the view what a read at rev has found.
func (v *view) reset(all []Leader, rev int64) {
	v.rev = rev
	v.at = make(map[string]Leader, len(all))
	for _, l := range all {
		v.at[l.Key] = l
	}
}

// apply takes in the events of a watch, which are in order and hold every revision as a whole, and calls changed after
// each revision. Revisions that the view has seen already are passed over.
func (v *view) apply(events []*clientv3.Event, changed func()) {
	for len(events) > 0 {
		rev := events[0].Kv.ModRevision
		n := slices.IndexFunc(events, func(ev *clientv3.Event) bool { return ev.Kv.ModRevision != rev })
		if n < 0 {
			n = len(events)
		}
		if rev > v.rev {
			for _, ev := range events[:n] {
				v.set(ev)
			}
			v.rev = rev
			changed()
		}
		events = events[n:]
	}
}

func (v *view) set(ev *clientv3.Event) {
	if ev.Type == mvccpb.Event_PUT && queue.Contends(v.prefix, ev.Kv) {
		v.at[string(ev.Kv.Key)] = newLeader(ev.Kv)
	} else {
		delete(v.at, string(ev.Kv.Key)) // deleted, or no contender any more
	}
}

// leader is the oldest of the contenders.
func (v *view) leader() Leader {
	var first Leader
	for _, l := range v.at {
		if first.None() || l.before(first) < 0 {
			first = l
		}
	}
	return first
}
