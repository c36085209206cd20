package faultmatrix_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// bound is that of every call; healed is how long after all is well again, and the one before has gone, a waiter is
// granted at the latest.
const (
	bound  = 2 * time.Minute
	healed = 2*ttl + 3*time.Second
)

var (
	errGaveUp = errors.New("the caller gave up")
	errBound  = errors.New("the call took too long")
)

// world is one case: a server, the client to which the fault happens, others to which nothing happens, and what has been
// seen of them.
type world struct {
	t        *testing.T
	srv      *fakeetcd.Server
	fault    fault        // zero: none
	slept    atomic.Int64 // how long the subject's host was suspended: its timers stood still, its boot clock did not
	scripted bool         // the scenario has an operator of its own
	subject  *actor
	tasks    sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	wrong     []string
	seen      map[string]int // requests of the subject, by kind
	hit       time.Time      // when the fault happened
	actors    []*actor
	holds     []*hold
	disturbed map[int64]time.Time // by create revision: keys at which the operator has been
}

// actor is a process with a session.
type actor struct {
	w *world
	c *fakeetcd.Client
	s *lease.Session

	mu    sync.Mutex // guards the field below
	calls map[*context.CancelCauseFunc]struct{}
}

func newWorld(t *testing.T, f fault) *world {
	t.Helper()
	w := &world{
		t: t, srv: fakeetcd.New(), fault: f,
		seen: make(map[string]int), disturbed: make(map[int64]time.Time),
	}
	t.Cleanup(w.srv.Close)
	return w
}

// aim lets the fault happen to the nth request of that kind.
func (w *world) aim(kind string, nth int) {
	match := func(call fakeetcd.Call) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		k := kindOf(call)
		w.seen[k]++
		if k != kind || w.seen[k] != nth {
			return false
		}
		w.hit = time.Now()
		return true
	}
	is := w.fault.on(w)
	is.Match = match
	w.subject.c.Inject(fakeetcd.Any, is)
	w.subject.c.Inject(fakeetcd.WatchEvents, is)
}

func (w *world) actor() *actor {
	return &actor{w: w, c: w.srv.NewClient(w.t.Context()), calls: make(map[*context.CancelCauseFunc]struct{})}
}

// rival is a process to which nothing happens.
func (w *world) rival() *actor {
	a := w.actor()
	a.join()
	return a
}

// join makes the actor's session.
func (a *actor) join() {
	a.untilDone("new session", func(ctx context.Context) (err error) {
		s, err := lease.NewSession(ctx, a.c.Client, lease.Options{TTL: ttl})
		if err == nil {
			a.w.mu.Lock()
			a.s = s
			a.w.actors = append(a.w.actors, a)
			a.w.mu.Unlock()
		}
		return err
	})
}

// close is what a process does at its end.
func (a *actor) close() {
	if a.s == nil {
		return
	}
	id := a.s.Status().LeaseID
	err := a.call("close", func(ctx context.Context) error { return a.s.Close(ctx) })
	a.judge("close", err)
	if err != nil {
		return
	}
	if slices.ContainsFunc(a.w.srv.Leases(), func(l fakeetcd.Lease) bool { return l.ID == id }) {
		a.w.fail("close returned nil, and lease %x is there", id)
	}
	for _, kv := range a.w.srv.Keys("") {
		if clientv3.LeaseID(kv.Lease) == id {
			a.w.fail("close returned nil, and key %q is there", kv.Key)
		}
	}
}

// call makes a bounded call, during which the caller may give up.
func (a *actor) call(what string, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.Background()) // also beneath a call whose context has ended
	defer cancel(nil)
	timer := time.AfterFunc(bound, func() { cancel(errBound) })
	defer timer.Stop()
	a.mu.Lock()
	a.calls[&cancel] = struct{}{}
	a.mu.Unlock()
	began := time.Now()
	err := do(ctx)
	took := time.Since(began)
	a.mu.Lock()
	delete(a.calls, &cancel)
	a.mu.Unlock()
	if took > bound {
		a.w.fail("%s took %v", what, took)
	}
	return err
}

// giveUp ends the contexts of all calls under way.
func (a *actor) giveUp() {
	a.mu.Lock()
	calls := slices.Collect(maps.Keys(a.calls))
	a.mu.Unlock()
	for _, cancel := range calls {
		(*cancel)(errGaveUp)
	}
}

// untilDone calls again after failures that are in order.
func (a *actor) untilDone(what string, do func(context.Context) error) {
	for range 4 {
		err := a.call(what, do)
		if err == nil {
			return
		}
		a.judge(what, err)
		if errors.Is(err, lease.ErrClosed) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	a.w.fail("%s has not succeeded at last", what)
}

// judge accepts nil and the errors that the fault may cause.
func (a *actor) judge(what string, err error) {
	if err != nil && !a.inOrder(err) {
		a.w.fail("%s: %v", what, err)
	}
}

func (a *actor) inOrder(err error) bool {
	if a != a.w.subject {
		return false
	}
	var lost *lease.LostError
	isLost := errors.As(err, &lost) && errors.Is(err, lease.ErrLost)
	if isLost && lost.Reason == lease.ReasonLeaseGone && a.w.scripted {
		return true // it had not been found out yet
	}
	switch a.w.fault.class {
	case refusing:
		return strings.Contains(err.Error(), refusal(a.w.fault.is.Err)) && !isLost
	case cancelled:
		return errors.Is(err, errGaveUp) && !isLost
	case operator:
		return isLost && (lost.Reason == lease.ReasonLeaseGone || lost.Reason == lease.ReasonKeyDeleted || lost.Reason == lease.ReasonKeyOverwritten)
	case outage:
		return errors.Is(err, context.DeadlineExceeded) || // the bound that Close and Do set themselves
			isLost && (lost.Reason == lease.ReasonDeadlinePassed || lost.Reason == lease.ReasonLeaseGone)
	default:
		return false
	}
}

// refusal is what an error of the wire says.
func refusal(err error) string {
	_, text, _ := strings.Cut(err.Error(), "desc = ")
	return text
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// well is when the effects of the fault are over.
func (w *world) well() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hit.Add(w.fault.lasts)
}

// inBackground runs part of a scenario.
func (w *world) inBackground(do func()) (done <-chan struct{}) {
	ch := make(chan struct{})
	w.tasks.Go(func() {
		defer close(ch)
		do()
	})
	return ch
}

// foreign are the leases of those to whom nothing happens.
func (w *world) foreign() map[clientv3.LeaseID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make(map[clientv3.LeaseID]bool)
	for _, a := range w.actors {
		if a != w.subject {
			ids[a.s.Status().LeaseID] = true
		}
	}
	return ids
}

// touch lists the subject's leases, and notes that the operator has been at their keys.
func (w *world) touch() []fakeetcd.Lease {
	foreign := w.foreign()
	list := slices.DeleteFunc(w.srv.Leases(), func(l fakeetcd.Lease) bool { return foreign[l.ID] })
	for _, l := range list {
		for _, key := range l.Keys {
			for _, kv := range w.srv.Keys(key) {
				w.disturb(kv.CreateRevision)
			}
		}
	}
	return list
}

// disturb takes note that an operator has touched a key. The server is not asked under w.mu: it asks for that itself.
func (w *world) disturb(created int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disturbed[created] = time.Now()
}

func (w *world) revoke() {
	revoked := make(map[int64]bool)
	for _, l := range w.touch() {
		_ = w.srv.Revoke(l.ID) // it may have gone by itself
		revoked[int64(l.ID)] = true
	}
	w.disturbAlso(func(c fakeetcd.Change) bool { return !c.Put && c.Prev != nil && revoked[c.Prev.Lease] })
}

// disturbAlso takes note of what came between the look and the deed of this moment.
func (w *world) disturbAlso(done func(fakeetcd.Change) bool) {
	for _, c := range w.srv.History("") {
		if c.At.Equal(time.Now()) && done(c) {
			w.disturb(c.Prev.CreateRevision)
		}
	}
}

func (w *world) deleteKeys() {
	for _, l := range w.touch() {
		for _, key := range l.Keys {
			w.srv.Delete(key)
		}
	}
	w.disturbAlso(func(c fakeetcd.Change) bool { return !c.Put && c.Prev != nil })
}

// overwritten is what an operator writes.
const overwritten = "overwritten"

func (w *world) overwriteKeys() {
	for _, l := range w.touch() {
		for _, key := range l.Keys {
			w.srv.Put(key, overwritten)
		}
	}
	w.disturbAlso(func(c fakeetcd.Change) bool { return c.Put && c.Prev != nil && string(c.Kv.Value) == overwritten })
}

// compact drops the whole history, and the watches have to go on from where it is missing.
func (w *world) compact() {
	w.subject.c.BreakWatches(fakeetcd.ErrUnavailable)
	w.srv.Put(noise, "")
	_ = w.srv.Compact(w.srv.Put(noise, "")) // no other compacts
}

const noise = "z/noise"

func (w *world) changeLeader() {
	w.srv.ChangeLeader()
	w.subject.c.BreakWatches(fakeetcd.ErrUnavailable)
}
