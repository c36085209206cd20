package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
)

// Hooks are functions that a session calls when something happens, for metrics and traces; those that are nil are not called.
// [Options].Hooks sets them for all locks and elections of a session.
//
// No lock of the library is held during a call, and a function that blocks holds up no deadline and no renewal. AcquireStart,
// Queued, AcquireEnd and Released are called by the goroutine of the acquisition or of Unlock, which waits for them, so they must not
// close the session, which waits for the acquisition. If one of them panics the panic goes on, and the caller holds nothing: AcquireEnd
// is left out then if it was not called yet. Lost is called by a goroutine of its own, perhaps after Close has returned. The calls of
// Renewed come one after the other, and those of StateChanged and CleanUp too. While 256 of Renewed wait, further ones are dropped.
type Hooks struct {
	// AcquireStart is called when an acquisition begins: its name is legal, and nothing has been sent. The context that it
	// returns, made of ctx, is that of the requests that are sent for the acquisition alone: of no watch, and of none that shares a
	// commit with others. Its values are those of the other calls for this acquisition and its hold. It may return ctx.
	AcquireStart func(ctx context.Context, a Acquisition) context.Context
	// Queued is called when an acquisition begins to wait. Ahead is the key of the nearest that it waits for, "" if that is not
	// known: another acquisition of the session, or a slot of a semaphore.
	Queued func(ctx context.Context, a Acquisition, ahead string)
	// AcquireEnd is called before the acquisition returns, once for each AcquireStart.
	AcquireEnd func(ctx context.Context, a Acquisition, r Acquired)
	// Released is called when a hold that was not lost is unlocked, before Unlock returns. Err is the reason that Unlock returns.
	Released func(ctx context.Context, h Hold, err error)
	// Lost is called when a hold is lost. There is either one call of Released for a hold or one of Lost. One that has ended with
	// [ErrMaxHold] or [ErrAskedToRelease] still has its key: if nobody unlocks it, it is lost with its lease.
	Lost func(ctx context.Context, h Hold, err *LostError)

	// Renewed is called for each renewal of the lease that prolongs it.
	Renewed func(Renewal)
	// StateChanged is called with the session's status when its state or its lease has changed, also with the first. Changes that
	// follow each other faster than the calls end are left out, but not the last.
	StateChanged func(Status)
	// CleanUp is called when the number of keys has changed that are to be deleted in the background, those of attempts whose
	// outcome is not known among them.
	CleanUp func(lease clientv3.LeaseID, keys int)
}

// Kind of a lock.
type Kind int

// The kinds of locks. A leadership is that of package election.
const (
	_ Kind = iota
	KindLock
	KindReadLock
	KindLockSet
	KindTreeLock
	KindPermit
	KindLeadership
)

var kinds = [...]string{
	KindLock: "lock", KindReadLock: "read lock", KindLockSet: "lock set", KindTreeLock: "tree lock", KindPermit: "permit",
	KindLeadership: "leadership",
}

func (k Kind) String() string {
	if k <= 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return kinds[k]
}

// Acquisition is what a caller asks for.
type Acquisition struct {
	Kind  Kind
	Names []string // as they were given: several of a lock set, of a tree lock its path
	Try   bool     // it does not wait
	Owner string   // the text in the key, of a leadership its value
}

// Acquired is how an acquisition has ended.
type Acquired struct {
	Token  fence.Token   // of a reader a [fence.ReadToken]; 0 if Err is not nil
	Locks  []string      // the names that Token belongs to, as in [fence.WithLock]: of a permit its slot, of a lock set all
	Key    string        // of the hold, of several names the first one's
	Waited time.Duration // since AcquireStart
	Queued bool          // there was somebody before it
	Err    error         // the reason that is returned; ErrLocked if there was somebody and Try is set
}

// Hold is a lock that was held.
type Hold struct {
	Acquisition
	Acquired

	Held time.Duration // until the loss or the call of Unlock
}

// Renewal of a lease.
type Renewal struct {
	LeaseID   clientv3.LeaseID
	RoundTrip time.Duration
	Attempts  int           // since the answer before
	Left      time.Duration // until the deadline that there was before
}

// told is an acquisition that the hooks are told of, and its hold. Nil is one that they are not told of.
type told struct {
	hooks *Hooks
	ctx   context.Context //nolint:containedctx // of the acquisition, for its values
	began time.Time

	Hold

	name    [1]string // the room of Names, mostly
	granted time.Time
	stop    func() bool // nobody waits for a loss any more; false: the hold has ended

	mu   sync.Mutex  // guards the fields below, of a hold that has ended by itself
	over bool        // it was unlocked, or lost with its lease
	late func() bool // nobody waits for the lease's end any more
}

// begin tells the hooks of an acquisition and returns the context for it.
func (s *Session) begin(ctx context.Context, name, owner string, m mode) (context.Context, *told) {
	if s.opts.Hooks == nil {
		return ctx, nil
	}
	t := &told{hooks: s.opts.Hooks, began: time.Now()}
	t.Acquisition = Acquisition{Kind: m.kind, Names: m.names, Try: m.try, Owner: owner}
	if m.names == nil {
		t.name[0] = name
		t.Names = t.name[:]
	}
	if t.hooks.AcquireStart != nil {
		if made := t.hooks.AcquireStart(ctx, t.Acquisition); made != nil {
			ctx = made
		}
	}
	t.ctx = ctx
	return ctx, t
}

// queued tells that it waits, once.
func (t *told) queued(ahead string) {
	if t == nil || t.Queued || t.Try {
		return
	}
	t.Queued = true
	if t.hooks.Queued != nil {
		t.hooks.Queued(t.ctx, t.Acquisition, ahead)
	}
}

// end tells how it has ended. From then on the loss of l is told too.
func (t *told) end(l *Lock, err error) {
	if t == nil {
		return
	}
	t.granted = time.Now()
	t.Waited, t.Err = t.granted.Sub(t.began), err
	if err == nil {
		t.Token, t.Locks, t.Key = l.token, l.names(), l.entry.Key
	}
	t.Queued = t.Queued || t.Try && errors.Is(err, ErrLocked)
	if t.hooks.AcquireEnd != nil {
		returned := false
		defer func() {
			if !returned && l != nil { // it has panicked, and nobody gets the handle
				_ = l.finish(t.ctx)
			}
		}()
		t.hooks.AcquireEnd(t.ctx, t.Acquisition, t.Acquired)
		returned = true
	}
	if err != nil {
		return
	}
	t.ctx = context.WithoutCancel(t.ctx)
	l.told = t
	if t.hooks.Lost != nil {
		t.stop = context.AfterFunc(l.life, func() {
			if lost := l.lost(); lost != nil {
				t.lost(lost)
				return
			}
			t.outlive(l.g.handles)
		})
	}
}

// outlive tells of the loss of a hold that has ended by itself, if nobody unlocks it before the lease ends.
func (t *told) outlive(lease context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.late = context.AfterFunc(lease, func() {
			if lost := lostBy(lease); t.last() {
				t.lost(lost)
			}
		})
	}
}

// last reports whether it is called for the first time: whoever calls it tells how the hold has ended.
func (t *told) last() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := !t.over
	t.over = true
	if t.late != nil {
		t.late()
	}
	return first
}

func (t *told) lost(err *LostError) { t.hooks.Lost(t.ctx, t.held(time.Now()), err) }

// unlocking is called before a hold is ended by Unlock, so that this starts no goroutine. Lost: the caller tells of a loss that came
// before that end. Released: it calls released.
func (t *told) unlocking() (lost, released bool) {
	switch {
	case t == nil:
		return false, false
	case t.stop == nil || t.stop():
		return t.stop != nil, true
	}
	return false, t.last()
}

func (t *told) held(until time.Time) Hold {
	h := t.Hold
	h.Held = until.Sub(t.granted)
	return h
}

// released tells that Unlock, which was called then, returns err.
func (t *told) released(then time.Time, err error) {
	if t.hooks.Released != nil {
		t.hooks.Released(t.ctx, t.held(then), err)
	}
}

// tellState tells the session's status if it is another one than before. It runs in the queue of the states.
func (s *Session) tellState() {
	s.telling.Store(false) // what changes from now on is told again
	status := s.Status()
	if status.State != s.told.State || status.LeaseID != s.told.LeaseID {
		s.told = status
		s.opts.Hooks.StateChanged(status)
	}
}

// tellRenewal tells of a renewal, before which there was so much time left.
func (g *grant) tellRenewal(roundTrip time.Duration, attempts int, left time.Duration) {
	if h := g.s.opts.Hooks; h != nil && h.Renewed != nil && left > 0 { // or else it came too late
		g.s.events.Add(func() { h.Renewed(Renewal{g.id, roundTrip, attempts, left}) })
	}
}

// tellCleanUp tells how many keys the reaper has.
func (r *reaper) tellCleanUp() {
	if h := r.g.s.opts.Hooks; h != nil && h.CleanUp != nil && !r.telling.Swap(true) {
		r.g.s.states.Add(func() {
			r.telling.Store(false)
			r.mu.Lock()
			n := len(r.orphans)
			known := r.told == n
			r.told = n
			r.mu.Unlock()
			if !known {
				h.CleanUp(r.g.id, n)
			}
		})
	}
}
