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

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// handle is what a caller gets with a lock.
type handle interface {
	Context() context.Context
	Err() error
}

// spot is a place in the queue of a name.
type spot struct {
	name  string
	reads bool // others that read hold at the same time: a reader's lock, or a node above the one that is locked
}

// hold is a spot that was granted, and what happened to it.
type hold struct {
	handle
	spot

	a       *actor
	token   fence.Token
	key     string
	granted time.Time
	release func(context.Context) error
	ended   time.Time // guarded by world.mu; zero: it is live
	said    string    // the last value that was proclaimed and confirmed
}

// held records a grant to a call made at asked, and checks that it came in time. That it came in its turn is checked at
// the end, see [world.check].
func (a *actor) held(r *hold, asked time.Time) *hold {
	w := a.w
	r.a, r.key, r.granted = a, w.keyOf(r.name, r.token), time.Now()
	well := w.well()
	_, mine := w.disturbed(r.token) // its turn came just before the operator; the handle will end
	w.mu.Lock()
	last := asked
	if well.After(last) {
		last = well
	}
	for _, o := range w.holds {
		switch {
		case o.name != r.name || o.reads && r.reads:
		case o.ended.After(last):
			last = o.ended
		case o.ended.IsZero() && o.Context().Err() != nil: // just now
			last = r.granted
		}
	}
	w.holds = append(w.holds, r)
	now := w.fault.suspends && w.hit.Equal(r.granted) // the host may have been suspended after the grant
	w.mu.Unlock()
	if d, ok := r.handle.(interface{ Deadline() time.Time }); ok && !r.granted.Before(d.Deadline()) && !mine && !now {
		w.fail("%s was granted past its deadline", r.key)
	}
	if late := r.granted.Sub(last); late > healed {
		w.fail("%s was granted %v after it could have been", r.key, late)
	}
	context.AfterFunc(r.Context(), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		r.ended = time.Now()
	})
	return r
}

// keyOf finds the key of a name that was created at a revision, or returns the name if there is none.
func (w *world) keyOf(name string, token fence.Token) string {
	for _, c := range w.changes(name) {
		if c.Put && c.Kv.CreateRevision == int64(token) {
			return string(c.Kv.Key)
		}
	}
	return name
}

// spots are the places that a lock has.
func spots(lock any) (list []spot) {
	switch l := lock.(type) {
	case *lease.LockSet:
		for _, name := range l.Names() {
			list = append(list, spot{name: name})
		}
	case *lease.TreeLock:
		parts := strings.Split(l.Path(), "/")
		for i := range parts {
			list = append(list, spot{strings.Join(parts[:i+1], "/~"), i+1 < len(parts)})
		}
	case interface{ Name() string }:
		_, reads := lock.(*lease.ReadLock)
		list = []spot{{l.Name(), reads}}
	}
	return list
}

// take repeats a call until it has got its locks, and returns a hold that releases all of them. It returns nil if the
// call only tries and somebody else has the lock.
func take[T ~int64, H interface {
	handle
	Token() T
	Unlock(ctx context.Context) error
}](a *actor, what string, get func(ctx context.Context) (H, error)) (r *hold) {
	a.untilDone(what, func(ctx context.Context) error {
		asked := time.Now()
		l, err := get(ctx)
		switch {
		case errors.Is(err, lease.ErrLocked) && strings.HasPrefix(what, "try"):
			return nil
		case err != nil:
			return err
		}
		for _, at := range spots(l) {
			got := &hold{handle: l, spot: at, token: fence.Token(l.Token()), release: l.Unlock}
			r = a.held(got, asked) // the hold outlives the call
		}
		if r == nil {
			a.w.fail("%s returned %T, which has no name", what, l)
		}
		return nil
	})
	return r
}

// named returns a call of a method that takes the lock of a name.
func named[L any](lock func(context.Context, string, ...lease.LockOption) (L, error), name string) func(context.Context) (L, error) {
	return func(ctx context.Context) (L, error) { return lock(ctx, name) }
}

func (a *actor) lock(name string) *hold  { return take(a, "lock", named(a.s.Lock, name)) }
func (a *actor) try(name string) *hold   { return take(a, "try", named(a.s.TryLock, name)) }
func (a *actor) rlock(name string) *hold { return take(a, "rlock", named(a.s.RLock, name)) }
func (a *actor) tryR(name string) *hold  { return take(a, "tryR", named(a.s.TryRLock, name)) }

func (a *actor) lockTree(path string) *hold {
	return take(a, "lockTree", func(ctx context.Context) (*lease.TreeLock, error) { return a.s.LockTree(ctx, path) })
}

func (a *actor) lockAll(names ...string) *hold {
	return take(a, "lockAll", func(ctx context.Context) (*lease.LockSet, error) { return a.s.LockAll(ctx, names...) })
}

func (a *actor) tryAll(names ...string) *hold {
	return take(a, "tryAll", func(ctx context.Context) (*lease.LockSet, error) { return a.s.TryLockAll(ctx, names...) })
}

// permit takes one of two permits.
func (a *actor) permit() *hold {
	return take(a, "permit", func(ctx context.Context) (*lease.Permit, error) { return a.s.Permit(ctx, "a", 2) })
}

func (a *actor) tryPermit() *hold {
	return take(a, "tryPermit", func(ctx context.Context) (*lease.Permit, error) { return a.s.TryPermit(ctx, "a", 2) })
}

// leader is a leadership as a lock.
type leader struct{ *election.Leadership }

func (l leader) Unlock(ctx context.Context) error { return l.Resign(ctx) }

func (a *actor) campaign(name string, opts election.Options) *hold {
	r := take(a, "campaign", func(ctx context.Context) (leader, error) {
		l, err := election.Campaign(ctx, a.s, name, opts)
		return leader{l}, err
	})
	if r != nil {
		r.said = opts.Value
	}
	return r
}

// keep waits for d, or until the loss.
func (r *hold) keep(d time.Duration) *hold {
	if r == nil {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
	return r
}

// proclaim proclaims value. A failure that the fault may cause can leave either value.
func (r *hold) proclaim(value string) {
	if r == nil {
		return
	}
	lost := r.Err() != nil
	err := r.a.call("proclaim", func(ctx context.Context) error {
		return r.handle.(leader).Proclaim(ctx, value)
	})
	if r.said = value; err != nil {
		r.said = ""
		if !lost || !errors.Is(err, lease.ErrLost) {
			r.a.judge("proclaim", err)
		}
	}
}

// unlock releases the hold and checks the result.
func (r *hold) unlock() {
	if r == nil {
		return
	}
	r.checkRelease(r.a.call("release", r.release))
}

// checkRelease checks the error that a release has returned.
func (r *hold) checkRelease(err error) {
	w := r.a.w
	cause := context.Cause(r.Context())
	wasLost := errors.Is(cause, lease.ErrLost)
	_, disturbed := w.disturbed(r.token)
	there := slices.ContainsFunc(w.srv.Keys(r.key), func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == int64(r.token) })
	switch {
	case err == nil && wasLost:
		w.fail("%s: released without an error after %v", r.key, cause)
	case err == nil && there:
		w.fail("%s: released without an error, but the key exists", r.key)
	case err == nil:
	case errors.Is(err, lease.ErrLost) && (disturbed || wasLost): // check compares the loss with the history
	case errors.Is(err, lease.ErrLost) && w.fault.class == outage && r.a == w.subject: // before the server had confirmed
	case errors.Is(err, lease.ErrClosed): // before the server had confirmed
	case errors.Is(err, lease.ErrLost):
		w.fail("%s: release reports a loss, but it was not lost: %v", r.key, err)
	case wasLost:
		w.fail("%s: released with %v after %v", r.key, err, cause)
	default:
		r.a.judge("release", err)
	}
}

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
