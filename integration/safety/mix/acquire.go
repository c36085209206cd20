package mix

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// handle is a lock or a leadership.
type handle interface {
	Token() fence.Token
	Key() string
	Context() context.Context
	Err() error
}

// candidate is leadership as a lock, without the forms try and do. Its Unlock transfers the leadership to the
// successor, or resigns if there is none.
func candidate(s *lease.Session, name string, opts election.Options, successor string) locker {
	return locker{
		session: s, enter: campaign(name),
		lock: func(ctx context.Context) (unlocker, error) {
			l, err := election.Campaign(ctx, s, name, opts)
			return leader{l, successor}, err
		},
	}
}

// campaign returns the enter event of a candidate.
func campaign(name string) history.Event { return history.Event{Name: name, Verb: history.Campaign} }

// leader is the handle of a leader.
type leader struct {
	*election.Leadership
	successor string
}

// Unlock resigns if a transfer fails, for example because the successor does not wait.
func (l leader) Unlock(ctx context.Context) error {
	if l.successor == "" {
		return l.Resign(ctx)
	}
	err := l.Transfer(ctx, l.successor)
	if err == nil || errors.Is(err, lease.ErrLost) {
		return err
	}
	if err = l.Resign(ctx); errors.Is(err, election.ErrResigned) { // Transfer has resigned
		err = nil
	}
	return err
}

func (w *worker) campaign(name string) {
	successor := ""
	if name == w.names.preferring() && w.rng.IntN(3) == 0 {
		successor = w.crew.name + workerNames + strconv.Itoa(w.rng.IntN(4))
	}
	w.lock(candidate(w.session(), name, election.Options{Value: w.name, Priority: w.priority(name)}, successor))
}

// priority returns a random priority in the election that has priorities, and 0 in the others.
func (w *worker) priority(name string) int {
	if name != w.names.preferring() {
		return 0
	}
	return w.rng.IntN(3)
}

// lead campaigns by election.Run. If Run campaigns again after a loss, that is recorded as another acquisition.
func (w *worker) lead(name string) {
	ctx, cancel := w.wait()
	defer cancel()
	session := w.session()
	on := session.Status().LeaseID
	op, waits := w.enter(campaign(name)), true
	onLost := func(err error) {
		w.released(op, err)
		op, waits = w.enter(campaign(name)), true
	}
	err := election.Run(ctx, session, name, election.Options{Value: w.name, Priority: w.priority(name)}, func(ctx context.Context, _ fence.Token) error {
		waits = false
		l, _ := election.FromContext(ctx)
		w.hold(op, name, l) //nolint:contextcheck // as in do
		w.finish(ctx, op)
		return nil
	}, election.WithOnLost(onLost))
	if waits {
		w.giveUp(op, on, err)
	} else {
		w.released(op, err)
	}
}

// under is the function that runs under a scoped form. Now and then it cancels the caller's context while it runs.
func (w *worker) under(op int64, name string, h scoped, giveUp func()) {
	w.hold(op, name, h)
	if w.rng.IntN(4) == 0 {
		giveUp()
		w.pause(w.some(100, 300))
	}
	w.finish(h.ctx, op)
}

// finish ends a function that runs under a scoped form. If the function's context has ended, finish delays the return:
// the form must not release the lock before it.
func (w *worker) finish(ctx context.Context, op int64) {
	if ctx.Err() != nil {
		w.pause(w.some(20, 60))
	}
	w.log.Record(history.Event{Kind: history.Release, Op: op, Verb: history.Returned})
}

// scoped is the handle of a function that runs under Do or another scoped form.
type scoped struct {
	ctx     context.Context //nolint:containedctx // it is the handle
	token   fence.Token
	session interface{ Status() lease.Status }
	shared  bool
}

func (s scoped) Token() fence.Token       { return s.token }
func (s scoped) Key() string              { return "" }
func (s scoped) Context() context.Context { return s.ctx }

// Err asks the session first, which checks the clock: in a process that has just woken up, the context's timer may not
// have run yet.
func (s scoped) Err() error {
	if st := s.session.Status(); st.State == lease.StateLost {
		return st.Err
	}
	return context.Cause(s.ctx)
}

// giveUp records that nothing was acquired, and the lease that was used. If the session is closed or has no permission,
// giveUp pauses, so that the worker does not spin until there is a new session or permission.
func (w *worker) giveUp(op int64, on clientv3.LeaseID, err error) {
	if lost, ok := errors.AsType[*lease.LostError](err); ok && lost.LeaseID != 0 {
		on = lost.LeaseID
	}
	outcome := history.Failed
	if errors.Is(err, lease.ErrLocked) {
		outcome = history.Refused
	}
	w.log.Record(history.Event{Kind: history.GiveUp, Op: op, Outcome: outcome, Error: fmt.Sprintf("%v (lease %x)", err, int64(on))})
	if errors.Is(err, lease.ErrClosed) || forbidden(err) {
		w.pause(w.some(20, 100))
	}
}

// release calls end, which releases the handle or leaves the release to the background. Meanwhile it asks whether the
// handle is live: the handle must end before its key is deleted.
func (w *worker) release(op int64, h handle, end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*w.ttl)
	defer cancel()
	w.log.Record(history.Event{Kind: history.Release, Op: op})
	done := make(chan error, 1)
	go func() { done <- end(ctx) }()
	for ended := false; !ended; {
		at := w.log.Now()
		if h.Err() == nil {
			w.log.Record(history.Event{At: at, Kind: history.Live, Op: op})
		}
		select {
		case err := <-done:
			w.released(op, err)
			ended = true
		case <-time.After(2 * time.Millisecond):
		}
	}
	if w.saboteur.FalseLive {
		w.pause(w.some(5, 20))
		w.log.Record(history.Event{Kind: history.Live, Op: op})
	}
}

func (w *worker) released(op int64, err error) {
	e := history.Event{Kind: history.Released, Op: op, Outcome: history.OK}
	switch {
	case errors.Is(err, lease.ErrLost):
		e.Outcome = history.Failed
	case err != nil:
		e.Outcome = history.Unknown
	}
	if err != nil {
		e.Error = err.Error()
	}
	w.log.Record(e)
}

func (w *worker) granted(op int64, name string, h handle) {
	w.log.Record(history.Event{Kind: history.Grant, Op: op, Actor: w.name, Name: name, Token: h.Token(), Key: h.Key()})
}

// hold records the grant and works under the handle until the tenure is over. The caller then releases.
func (w *worker) hold(op int64, name string, h handle) {
	w.granted(op, name, h)
	defer w.recordLoss(op, h)()
	t := &tenure{worker: w, op: op, name: name, handle: h, begun: time.Now()}
	if shared(h) {
		t.read()
	} else {
		t.work()
	}
}

// shared reports whether a handle is that of a reader.
func shared(h handle) bool {
	if s, ok := h.(scoped); ok {
		return s.shared
	}
	_, ok := h.(reading)
	return ok
}

// recordLoss records it if the handle's context ends before stop is called.
func (w *worker) recordLoss(op int64, h handle) (stop func()) {
	recorded := make(chan struct{})
	stopped := context.AfterFunc(h.Context(), func() {
		defer close(recorded)
		w.log.Record(history.Event{Kind: history.Lost, Op: op, Error: context.Cause(h.Context()).Error()})
	})
	return func() {
		if !stopped() { // the event must be in the history of this round
			<-recorded
		}
	}
}
