package faultmatrix_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

const (
	bound  = 2 * time.Minute       // the time limit of every call
	healed = 2*ttl + 3*time.Second // the longest wait once the fault is over and the holder before has gone
)

var (
	errGaveUp = errors.New("the caller gave up")
	errBound  = errors.New("the call took too long")
)

// world is one case: a server, the client that the fault hits (the subject), other clients (the rivals), and what
// they have done.
type world struct {
	t        *testing.T
	srv      *fakeetcd.Server
	fault    fault          // zero: none
	host     *hosttest.Host // the subject's, if the fault suspends it
	scripted bool           // the scenario itself has an operator
	subject  *actor
	tasks    sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	wrong  []string
	seen   map[string]int // requests of the subject, by kind
	hit    time.Time      // when the fault happened
	actors []*actor
	holds  []*hold
}

// actor is a process with a session.
type actor struct {
	w *world
	c *fakeetcd.Client
	s *lease.Session

	mu    sync.Mutex      // guards the fields below
	calls context.Context //nolint:containedctx // of all calls under way
	end   context.CancelCauseFunc
}

// aim makes the fault hit the nth request of that kind.
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
	a := &actor{w: w, c: w.srv.NewClient(w.t.Context())}
	a.calls, a.end = context.WithCancelCause(context.Background())
	return a
}

// rival is a process that the fault does not hit.
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

// close closes the actor's session, and checks that the server has nothing left of it.
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
		a.w.fail("close returned nil, but lease %x exists", id)
	}
	for _, kv := range a.w.srv.Keys("") {
		if clientv3.LeaseID(kv.Lease) == id {
			a.w.fail("close returned nil, but key %q exists", kv.Key)
		}
	}
}

// call makes a call with a time limit, which giveUp may end.
func (a *actor) call(what string, do func(context.Context) error) error {
	a.mu.Lock()
	ctx, cancel := context.WithCancelCause(a.calls)
	a.mu.Unlock()
	defer cancel(nil)
	defer time.AfterFunc(bound, func() { cancel(errBound) }).Stop()
	began := time.Now()
	err := do(ctx)
	if took := time.Since(began); took > bound {
		a.w.fail("%s took %v", what, took)
	}
	return err
}

// giveUp ends the contexts of all calls under way.
func (a *actor) giveUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end(errGaveUp)
	a.calls, a.end = context.WithCancelCause(context.Background())
}

// untilDone repeats a call after failures that the fault may cause.
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
	a.w.fail("%s has failed four times", what)
}

// judge accepts nil and the errors that the fault may cause.
func (a *actor) judge(what string, err error) {
	if err != nil && !a.expected(err) {
		a.w.fail("%s: %v", what, err)
	}
}

func (a *actor) expected(err error) bool {
	if a != a.w.subject {
		return false
	}
	var lost *lease.LostError
	isLost := errors.As(err, &lost) && errors.Is(err, lease.ErrLost)
	if isLost && lost.Reason == lease.ReasonLeaseGone && a.w.scripted {
		return true // the subject had not noticed the revocation yet
	}
	switch a.w.fault.class {
	case refusing:
		return strings.Contains(err.Error(), refusal(a.w.fault.is.Err)) && !isLost
	case cancelled:
		return errors.Is(err, errGaveUp) && !isLost
	case operator:
		return isLost && (lost.Reason == lease.ReasonLeaseGone || lost.Reason == lease.ReasonKeyDeleted || lost.Reason == lease.ReasonKeyOverwritten)
	case outage:
		return errors.Is(err, context.DeadlineExceeded) || // the limit that Close and Do set themselves
			isLost && (lost.Reason == lease.ReasonDeadlinePassed || lost.Reason == lease.ReasonLeaseGone)
	default:
		return false
	}
}

// refusal is the text of a gRPC error.
func refusal(err error) string {
	_, text, _ := strings.Cut(err.Error(), "desc = ")
	return text
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// well is the moment when the effects of the fault are over.
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

// leases are the subject's, also one of a Grant whose answer was lost.
func (w *world) leases() []fakeetcd.Lease {
	return slices.DeleteFunc(w.srv.Leases(), func(l fakeetcd.Lease) bool { return l.Client != w.subject.c })
}

func (w *world) revoke() {
	for _, l := range w.leases() {
		_ = w.srv.Revoke(l.ID) // the lease may have ended already
	}
}

func (w *world) deleteKeys() {
	for _, l := range w.leases() {
		for _, key := range l.Keys {
			w.srv.Delete(key)
		}
	}
}

// disturbed returns when the operator touched the key of that token, and false if it did not.
func (w *world) disturbed(token fence.Token) (at time.Time, ok bool) {
	for _, c := range w.srv.History("") {
		if c.Direct && c.Prev != nil && c.Prev.CreateRevision == int64(token) {
			return c.At, true
		}
	}
	return time.Time{}, false
}

// overwritten is the value that the operator writes.
const overwritten = "overwritten"

// stray puts a key of the operator's into a queue. It stays.
func (w *world) stray(key string) { w.srv.Put(key, overwritten) }

func (w *world) overwriteKeys() {
	for _, l := range w.leases() {
		for _, key := range l.Keys {
			w.srv.Put(key, overwritten)
		}
	}
}

// compact drops the whole history, so the broken watches have to resume at a compacted revision.
func (w *world) compact() {
	w.subject.c.BreakWatches(fakeetcd.ErrUnavailable)
	w.srv.Put(noise, "")
	_ = w.srv.Compact(w.srv.Put(noise, "")) // cannot fail: nobody else compacts
}

const noise = "z/noise"

func (w *world) changeLeader() {
	w.srv.ChangeLeader()
	w.subject.c.BreakWatches(fakeetcd.ErrUnavailable)
}
