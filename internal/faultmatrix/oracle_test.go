package faultmatrix_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// place is a key in a queue according to the server's history, from its creation to its end.
type place struct {
	first   time.Time // when no older contender excluded it any more; zero: never
	deleted time.Time // zero: never
	value   string    // the last one
}

// changes are those of the keys of a name, but not of names below it: a session batches requests, so keys of both may have
// the same create revision.
func (w *world) changes(name string) []fakeetcd.Change {
	return slices.DeleteFunc(w.srv.History(name+"/"), func(c fakeetcd.Change) bool {
		return strings.Contains(string(c.Kv.Key[len(name)+1:]), "/")
	})
}

// places returns all keys that were in the queue of a name, by their create revisions.
func (w *world) places(name string) map[int64]*place {
	prefix := name + "/"
	list := make(map[int64]*place)
	keys := make(map[string]*mvccpb.KeyValue)
	history := w.changes(name)
	for i, c := range history {
		key := string(c.Kv.Key)
		if c.Put {
			keys[key] = c.Kv
			p := list[c.Kv.CreateRevision]
			if p == nil {
				p = &place{}
				list[c.Kv.CreateRevision] = p
			}
			p.value = string(c.Kv.Value)
		} else {
			delete(keys, key)
			list[c.Prev.CreateRevision].deleted = c.At
		}
		if i+1 < len(history) && history[i+1].Rev == c.Rev {
			continue // all changes of one revision happen at once
		}
		for _, kv := range keys {
			excluded := false
			for _, older := range keys {
				excluded = excluded || queue.Contends(prefix, older) && older.CreateRevision < kv.CreateRevision &&
					(!reads(prefix, kv) || !reads(prefix, older))
			}
			if p := list[kv.CreateRevision]; !excluded && p.first.IsZero() && queue.Contends(prefix, kv) {
				p.first = c.At
			}
		}
	}
	return list
}

// reads reports whether a contender is a reader.
func reads(prefix string, kv *mvccpb.KeyValue) bool { return kv.Key[len(prefix)] == 'r' }

// check compares the holds with the server's history.
func (w *world) check() {
	prompt := time.Second // more than the 250 ms after which a held lock is watched
	if w.scripted && w.fault.class != operator {
		prompt = ttl // the scenario's own operator, on a network with a fault
	}
	places := make(map[string]map[int64]*place)
	for _, r := range w.holds {
		if places[r.name] == nil {
			places[r.name] = w.places(r.name)
		}
		p := places[r.name][int64(r.token)]
		at, disturbed := w.disturbed(r.token)
		switch {
		case p == nil:
			w.fail("%q: token %s is no create revision in its queue", r.name, r.token)
			continue
		case r.ended.IsZero():
			w.fail("%s is live at the end", r.key)
			continue
		case disturbed:
			if at.Before(r.granted) {
				at = r.granted
			}
			if late := r.ended.Sub(at); late > prompt {
				w.fail("%s: its key was gone for %v before it ended", r.key, late)
			}
			continue
		case p.first.IsZero() || p.first.After(r.granted):
			w.fail("%s was granted before its turn", r.key)
		case !p.deleted.IsZero() && p.deleted.Before(r.ended):
			w.fail("%s: the key was gone %v before the handle ended", r.key, r.ended.Sub(p.deleted))
		case r.said != "" && p.value != r.said:
			w.fail("%s: the last value is %q, want %q", r.key, p.value, r.said)
		}
		cause := context.Cause(r.Context())
		if errors.Is(cause, lease.ErrLost) && !errors.Is(cause, lease.ErrClosed) && (w.fault.class != outage || r.a != w.subject) {
			w.fail("%s: lost without a reason: %v", r.key, cause)
		}
		if late := r.ended.Sub(w.deadline(r)); late > 0 {
			w.fail("%s: ended %v after its deadline", r.key, late)
		}
	}
}

// deadline is the latest time at which r had to end. It counts from the send of the last request that was
// acknowledged by then.
func (w *world) deadline(r *hold) time.Time {
	var sent time.Time
	for _, m := range []fakeetcd.Method{fakeetcd.Grant, fakeetcd.KeepAliveOnce} {
		for _, call := range r.a.c.Calls(m) {
			known := !call.Answered.IsZero() && call.Err == nil && !call.Answered.After(r.ended)
			if known && call.Sent.After(sent) {
				sent = call.Sent
			}
		}
	}
	return sent.Add(ttl - ttl/10)
}

// probe takes the lock "a" in a new process when everything is over: no key may be left in its way.
func (w *world) probe() {
	if d := time.Until(w.well()); d > 0 && w.fault.class == outage {
		time.Sleep(d)
	}
	a := w.rival()
	began := time.Now()
	a.lock("a").unlock()
	if took := time.Since(began); took > healed {
		w.fail("the lock was free only after %v", took)
	}
	a.close()
}

// empty checks that nothing is left on the server when all late requests have arrived.
func (w *world) empty() {
	for _, kv := range w.srv.Keys("") {
		operators := kv.Lease == 0 && string(kv.Value) == overwritten // the operator's to delete, unless its owner has
		if string(kv.Key) != noise && !operators {
			w.fail("key %q is left", strings.ToValidUTF8(string(kv.Key), ""))
		}
	}
	if n := len(w.srv.Leases()); n > 0 {
		w.fail("%d leases are left", n)
	}
	w.srv.BreakWatches(rpctypes.ErrGRPCNoLeader) // ends watches that etcd's client has abandoned
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if n := w.srv.Watchers(); n > 0 {
		w.fail("%d watches are left", n)
	}
}
