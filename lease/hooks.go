package lease

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
)

// Hooks are functions that a session calls on events, for metrics and traces; nil fields are skipped. [Options].Hooks
// sets them for all locks and elections of a session.
//
// The library holds no mutex during a call, and a function that blocks delays no deadline and no renewal. The goroutine
// of the acquisition or of Unlock calls AcquireStart, Queued, AcquireEnd and Released, and waits for them, so they must
// not close the session, which waits for the acquisition. If one of them panics, the panic propagates and the caller
// holds nothing; AcquireEnd is not called after the panic. Lost is called in a goroutine of its own, perhaps after
// Close has returned. The calls of Renewed come one after the other, and so do those of StateChanged and CleanUp
// together. While 256 calls of Renewed wait, further ones are dropped.
type Hooks struct {
	// AcquireStart is called when an acquisition begins, after its name was checked and before anything is sent. It
	// returns a context derived from ctx, or ctx itself. The requests of this acquisition alone use that context; its
	// watches, and requests that share a commit with other acquisitions, do not. The other calls for this acquisition
	// and its hold get a context with its values.
	AcquireStart func(ctx context.Context, a Acquisition) context.Context
	// Queued is called when an acquisition begins to wait. Ahead is the key of the nearest contender that it waits for.
	// It is "" while that is unknown: the acquisition waits for another one of the session, or for a slot of a
	// semaphore.
	Queued func(ctx context.Context, a Acquisition, ahead string)
	// AcquireEnd is called before the acquisition returns, once for each AcquireStart.
	AcquireEnd func(ctx context.Context, a Acquisition, r Acquired)
	// Released is called before Unlock returns, if the hold was not lost. Err is the reason that Unlock returns.
	Released func(ctx context.Context, h Hold, err error)
	// Lost is called when a hold is lost. Each hold gets one call of either Released or Lost. A hold that ended with
	// [ErrMaxHold] or [ErrAskedToRelease] still has its key: if nobody unlocks it, it is lost with its lease.
	Lost func(ctx context.Context, h Hold, err *LostError)

	// Renewed is called for each renewal that prolongs the lease.
	Renewed func(Renewal)
	// StateChanged is called with the session's status when its state or its lease changes, and with the first status.
	// If changes come faster than the calls return, those in between are skipped, but never the last.
	StateChanged func(Status)
	// CleanUp is called when the number of keys that the session still has to delete in the background changes. Keys of
	// attempts with an unknown outcome count too.
	CleanUp func(lease clientv3.LeaseID, keys int)
}

// Kind is the kind of a lock.
type Kind int

// The kinds of locks. KindLeadership is that of package election.
const (
	_ Kind = iota
	KindLock
	KindReadLock
	KindLockSet
	KindTreeLock
	KindPermit
	KindLeadership
)

var kinds = []string{
	KindLock: "lock", KindReadLock: "read lock", KindLockSet: "lock set", KindTreeLock: "tree lock", KindPermit: "permit",
	KindLeadership: "leadership",
}

func (k Kind) String() string { return nameOf("Kind", int(k), kinds) }

// Acquisition is what a caller asks for.
type Acquisition struct {
	Kind  Kind
	Names []string // as given: all of a lock set, the path of a tree lock
	Try   bool     // fail instead of waiting
	Owner string   // the text in the key; the value of a leadership
}

// Acquired is the outcome of an acquisition.
type Acquired struct {
	Token  fence.Token   // a [fence.ReadToken] for a reader; 0 if Err is not nil
	Locks  []string      // the names that Token belongs to, as in [fence.WithLock]: all of a lock set, the slot of a permit
	Key    string        // of the hold; the first name's for several
	Waited time.Duration // since AcquireStart
	Queued bool          // somebody was ahead
	Err    error         // the reason for the returned error; matches ErrLocked if Try is set and somebody was ahead
}

// Hold is a lock that was held.
type Hold struct {
	Acquisition
	Acquired

	Held time.Duration // until the loss or the call of Unlock
}

// Renewal is one acknowledged renewal of a lease.
type Renewal struct {
	LeaseID   clientv3.LeaseID
	RoundTrip time.Duration
	Attempts  int           // since the previous answer
	Left      time.Duration // until the previous deadline
}

// hooked is one acquisition and its hold, as the hooks see them. Its methods do nothing on nil, which means no hooks.
type hooked struct {
	hooks *Hooks
	ctx   context.Context //nolint:containedctx // of the acquisition, for its values
	began time.Time

	Hold

	granted  time.Time
	stop     func() bool   // stops the wait for a loss; false: the hold has already ended
	unlocked chan struct{} // closed by Unlock
	over     atomic.Bool   // one of Lost and Released has been chosen
}

// begin calls AcquireStart and returns the context of the acquisition. done must be called after its last use.
func (s *Session) begin(ctx context.Context, name, owner string, m mode) (_ context.Context, h *hooked, done func()) {
	done = func() {}
	if s.opts.Hooks == nil {
		return ctx, nil, done
	}
	h = &hooked{hooks: s.opts.Hooks, began: time.Now()}
	if m.names == nil {
		m.names = []string{name}
	}
	h.Acquisition = Acquisition{Kind: m.kind, Names: m.names, Try: m.try, Owner: owner}
	if h.hooks.AcquireStart != nil {
		caller := ctx
		ctx = cmp.Or(h.hooks.AcquireStart(ctx, h.Acquisition), ctx)
		if ctx.Done() != caller.Done() { // it may not be derived from the caller's, which bounds the wait all the same
			ctx, done = scope.Join(ctx, caller)
		}
	}
	h.ctx = ctx
	return ctx, h, done
}

// queued calls Queued, at most once.
func (h *hooked) queued(ahead string) {
	if h == nil || h.Queued || h.Try {
		return
	}
	h.Queued = true
	if h.hooks.Queued != nil {
		h.hooks.Queued(h.ctx, h.Acquisition, ahead)
	}
}

// end calls AcquireEnd, and arranges for the call of Lost.
func (h *hooked) end(l *Lock, err error) {
	if h == nil {
		return
	}
	h.granted = time.Now()
	h.Waited, h.Err = h.granted.Sub(h.began), err
	if err == nil {
		h.Token, h.Locks, h.Key = l.token, l.names(), l.entry.Key
	}
	h.Queued = h.Queued || h.Try && errors.Is(err, ErrLocked) // which may also be the cause of a context
	if h.hooks.AcquireEnd != nil {
		returned := false
		defer func() {
			if !returned && l != nil { // AcquireEnd has panicked, and nobody gets the handle
				_ = l.finish(h.ctx)
			}
		}()
		h.hooks.AcquireEnd(h.ctx, h.Acquisition, h.Acquired)
		returned = true
	}
	if err != nil {
		return
	}
	h.ctx = context.WithoutCancel(h.ctx)
	if h.hooks.Lost != nil {
		h.unlocked = make(chan struct{})
		h.stop = context.AfterFunc(l.life, func() {
			lost := l.lost()
			if lost == nil { // it ended with ErrMaxHold or ErrAskedToRelease, and still has its key
				select {
				case <-l.g.handles.Done():
					lost = lostBy(l.g.handles)
				case <-h.unlocked:
					return
				}
			}
			if !h.over.Swap(true) {
				h.lost(lost)
			}
		})
	}
}

// lost calls Lost, if there is one.
func (h *hooked) lost(err *LostError) {
	if h.hooks.Lost != nil {
		go h.hooks.Lost(h.ctx, h.held(time.Now()), err)
	}
}

// unlocking is called by Unlock before it ends the hold, so that no goroutine is started to report that end. It reports
// whether Unlock has to: it then calls lost or released.
func (h *hooked) unlocking() bool {
	switch {
	case h == nil:
		return false
	case h.stop == nil: // nobody else reports it
		return true
	}
	close(h.unlocked)
	return h.stop() || !h.over.Swap(true)
}

func (h *hooked) held(until time.Time) Hold {
	hold := h.Hold
	hold.Held = until.Sub(h.granted)
	return hold
}

// released calls Released for a call of Unlock that came at then and returns err.
func (h *hooked) released(then time.Time, err error) {
	if h.hooks.Released != nil {
		h.hooks.Released(h.ctx, h.held(then), err)
	}
}

// reportState calls StateChanged if the state or the lease has changed. It runs in the queue states.
func (s *Session) reportState() {
	s.reporting.Store(false) // a change after this is reported by another call
	status := s.Status()
	if status.State != s.reported.State || status.LeaseID != s.reported.LeaseID {
		s.reported = status
		s.opts.Hooks.StateChanged(status)
	}
}

// reportRenewal calls Renewed; left is the time that remained until the deadline.
func (g *grant) reportRenewal(roundTrip time.Duration, attempts int, left time.Duration) {
	if h := g.s.opts.Hooks; h != nil && h.Renewed != nil && left > 0 { // otherwise it came too late
		g.s.events.Add(func() { h.Renewed(Renewal{g.id, roundTrip, attempts, left}) })
	}
}

// reportCleanUp calls CleanUp if the number of the reaper's keys has changed.
func (r *reaper) reportCleanUp() {
	if h := r.g.s.opts.Hooks; h != nil && h.CleanUp != nil && !r.reporting.Swap(true) {
		r.g.s.states.Add(func() {
			r.reporting.Store(false)
			r.mu.Lock()
			n := len(r.orphans)
			known := r.reported == n
			r.reported = n
			r.mu.Unlock()
			if !known {
				h.CleanUp(r.g.id, n)
			}
		})
	}
}

// JoinHooks returns hooks that call all of these in their order, for example those for metrics and those for traces.
// Each AcquireStart gets the context that the one before it returned. The other calls get the context of the last. Nil
// hooks are skipped. If an AcquireEnd or a Released panics, the others are called all the same: each learns of the
// beginning of a hold and of its end, or of neither.
func JoinHooks(all ...*Hooks) *Hooks {
	joined := &Hooks{}
	for _, g := range all {
		if g == nil {
			continue
		}
		f := joined
		joined = &Hooks{
			AcquireStart: join(f.AcquireStart, g.AcquireStart, func(ctx context.Context, a Acquisition) context.Context {
				first := cmp.Or(f.AcquireStart(ctx, a), ctx)
				return cmp.Or(g.AcquireStart(first, a), first)
			}),
			Queued: join(f.Queued, g.Queued, func(ctx context.Context, a Acquisition, ahead string) {
				f.Queued(ctx, a, ahead)
				g.Queued(ctx, a, ahead)
			}),
			AcquireEnd: join(f.AcquireEnd, g.AcquireEnd, func(ctx context.Context, a Acquisition, r Acquired) {
				defer g.AcquireEnd(ctx, a, r)
				f.AcquireEnd(ctx, a, r)
			}),
			Released: join(f.Released, g.Released, func(ctx context.Context, h Hold, err error) {
				defer g.Released(ctx, h, err)
				f.Released(ctx, h, err)
			}),
			Lost: join(f.Lost, g.Lost, func(ctx context.Context, h Hold, err *LostError) {
				f.Lost(ctx, h, err)
				g.Lost(ctx, h, err)
			}),
			Renewed:      join(f.Renewed, g.Renewed, func(r Renewal) { f.Renewed(r); g.Renewed(r) }),
			StateChanged: join(f.StateChanged, g.StateChanged, func(s Status) { f.StateChanged(s); g.StateChanged(s) }),
			CleanUp: join(f.CleanUp, g.CleanUp, func(lease clientv3.LeaseID, keys int) {
				f.CleanUp(lease, keys)
				g.CleanUp(lease, keys)
			}),
		}
	}
	return joined
}

// join returns both or, if one of f and g is nil, the other.
func join[F any](f, g, both F) F {
	switch {
	case reflect.ValueOf(f).IsNil():
		return g
	case reflect.ValueOf(g).IsNil():
		return f
	}
	return both
}
