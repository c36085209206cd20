package faultmatrix_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// handle is a lock or a leadership.
type handle interface {
	Token() fence.Token
	Context() context.Context
	Key() string
	Name() string
	Err() error
}

// hold is a handle and what became of it.
type hold struct {
	handle

	a       *actor
	granted time.Time
	release func(context.Context) error
	ended   time.Time // guarded by world.mu; zero: it is live
	said    string    // the last value that was proclaimed, and confirmed
}

// held notes a handle that was granted to a call made at asked.
func (a *actor) held(h handle, asked time.Time, release func(context.Context) error) *hold {
	w := a.w
	r := &hold{handle: h, a: a, granted: time.Now(), release: release}
	well := w.well()
	w.mu.Lock()
	last := asked
	if well.After(last) {
		last = well
	}
	var wrong []string
	_, mine := w.disturbed[int64(r.Token())] // its turn may have come just before that, and it ends with it
	for _, o := range w.holds {
		if o.Name() != r.Name() || o.reads() && r.reads() {
			continue
		}
		_, disturbed := w.disturbed[int64(o.Token())]
		disturbed = disturbed || mine
		if o.Context().Err() == nil && !disturbed {
			wrong = append(wrong, "two holders at a time")
		}
		if o.Token() >= r.Token() && !mine {
			wrong = append(wrong, "the token has not grown")
		}
		switch {
		case o.ended.After(last):
			last = o.ended
		case o.ended.IsZero() && o.Context().Err() != nil: // just now
			last = r.granted
		}
	}
	w.holds = append(w.holds, r)
	now := w.fault.suspends && w.hit.Equal(r.granted) // the host may have been suspended since
	w.mu.Unlock()
	for _, text := range wrong {
		w.fail("%s: %s", r.Key(), text)
	}
	if d, ok := h.(interface{ Deadline() time.Time }); ok && !r.granted.Before(d.Deadline()) && !mine && !now {
		w.fail("%s was granted past its deadline", r.Key())
	}
	if late := r.granted.Sub(last); late > healed {
		w.fail("%s was granted %v after it could have been", r.Key(), late)
	}
	context.AfterFunc(h.Context(), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		r.ended = time.Now()
	})
	return r
}

// reading is a reader's lock.
type reading struct{ *lease.ReadLock }

func (l reading) Token() fence.Token { return fence.Token(l.ReadLock.Token()) }

func (r *hold) reads() bool {
	switch h := r.handle.(type) {
	case reading:
		return true
	case node:
		return h.above
	default:
		return false
	}
}

// node is a node of a path that is held: the last, or one above it.
type node struct {
	*lease.TreeLock

	name, key string
	above     bool
}

func (n node) Name() string { return n.name }
func (n node) Key() string  { return n.key }

// lockTree is lock for a path. It returns the hold of the last node, with which all are released.
func (a *actor) lockTree(path string) (r *hold) {
	a.untilDone("lockTree", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.LockTree(ctx, path)
		if err != nil {
			return err
		}
		parts := strings.Split(path, "/")
		for i := range parts {
			name := strings.Join(parts[:i+1], "/~")
			n := node{l, name, a.w.keyOf(name, l.Token()), i+1 < len(parts)}
			r = a.held(n, asked, l.Unlock) //nolint:contextcheck // the hold outlives the call
		}
		return nil
	})
	return r
}

// rlock is lock for a reader.
func (a *actor) rlock(name string) (r *hold) {
	a.untilDone("rlock", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.RLock(ctx, name)
		if err == nil {
			r = a.held(reading{l}, asked, l.Unlock) //nolint:contextcheck // the hold outlives the call
		}
		return err
	})
	return r
}

// tryR is try for a reader.
func (a *actor) tryR(name string) (r *hold) {
	a.untilDone("tryR", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.TryRLock(ctx, name)
		switch {
		case err == nil:
			r = a.held(reading{l}, asked, l.Unlock) //nolint:contextcheck // the hold outlives the call
		case errors.Is(err, lease.ErrLocked):
			return nil
		}
		return err
	})
	return r
}

// part is one lock of a set.
type part struct {
	*lease.LockSet

	name, key string
}

func (p part) Name() string { return p.name }
func (p part) Key() string  { return p.key }

// holdAll notes each lock of a set, and returns the first, with which all are released.
func (a *actor) holdAll(l *lease.LockSet, asked time.Time) (first *hold) {
	for _, name := range l.Names() {
		r := a.held(part{l, name, a.w.keyOf(name, l.Token())}, asked, l.Unlock)
		if first == nil {
			first = r
		}
	}
	return first
}

// lockAll is lock for a set.
func (a *actor) lockAll(names ...string) (r *hold) {
	a.untilDone("lockAll", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.LockAll(ctx, names...)
		if err == nil {
			r = a.holdAll(l, asked) //nolint:contextcheck // the hold outlives the call
		}
		return err
	})
	return r
}

// tryAll is try for a set.
func (a *actor) tryAll(names ...string) (r *hold) {
	a.untilDone("tryAll", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.TryLockAll(ctx, names...)
		switch {
		case err == nil:
			r = a.holdAll(l, asked) //nolint:contextcheck // the hold outlives the call
		case errors.Is(err, lease.ErrLocked):
			return nil
		}
		return err
	})
	return r
}

// slot is a permit.
type slot struct {
	*lease.Permit

	key string
}

func (s slot) Key() string { return s.key }

// permit is lock for one of two permits.
func (a *actor) permit() (r *hold) {
	a.untilDone("permit", func(ctx context.Context) error {
		asked := time.Now()
		p, err := a.s.Permit(ctx, "a", 2)
		if err == nil {
			r = a.held(slot{p, a.w.keyOf(p.Name(), p.Token())}, asked, p.Unlock) //nolint:contextcheck // the hold outlives the call
		}
		return err
	})
	return r
}

// tryPermit is try for one of two permits.
func (a *actor) tryPermit() (r *hold) {
	a.untilDone("tryPermit", func(ctx context.Context) error {
		asked := time.Now()
		p, err := a.s.TryPermit(ctx, "a", 2)
		switch {
		case err == nil:
			r = a.held(slot{p, a.w.keyOf(p.Name(), p.Token())}, asked, p.Unlock) //nolint:contextcheck // the hold outlives the call
		case errors.Is(err, lease.ErrLocked):
			return nil
		}
		return err
	})
	return r
}

// lock gets the lock, with another attempt after a failure that is in order.
func (a *actor) lock(name string) (r *hold) {
	a.untilDone("lock", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.Lock(ctx, name)
		if err == nil {
			r = a.held(l, asked, l.Unlock) //nolint:contextcheck // the hold outlives the call
		}
		return err
	})
	return r
}

// try is lock with TryLock. It returns nil if the lock is taken.
func (a *actor) try(name string) (r *hold) {
	a.untilDone("try", func(ctx context.Context) error {
		asked := time.Now()
		l, err := a.s.TryLock(ctx, name)
		switch {
		case err == nil:
			r = a.held(l, asked, l.Unlock) //nolint:contextcheck // the hold outlives the call
		case errors.Is(err, lease.ErrLocked):
			return nil
		}
		return err
	})
	return r
}

func (a *actor) campaign(name string, opts election.Options) (r *hold) {
	a.untilDone("campaign", func(ctx context.Context) error {
		asked := time.Now()
		l, err := election.Campaign(ctx, a.s, name, opts)
		if err == nil {
			r = a.held(l, asked, l.Resign) //nolint:contextcheck // the hold outlives the call
			r.said = opts.Value
		}
		return err
	})
	return r
}

// keep holds for d, or until the loss.
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

// proclaim says value; a failure that is in order may leave either value.
func (r *hold) proclaim(value string) {
	if r == nil {
		return
	}
	lost := r.Err() != nil
	err := r.a.call("proclaim", func(ctx context.Context) error {
		return r.handle.(*election.Leadership).Proclaim(ctx, value)
	})
	switch {
	case err == nil:
		r.said = value
	case lost && errors.Is(err, lease.ErrLost):
		r.said = ""
	default:
		r.said = ""
		r.a.judge("proclaim", err)
	}
}

// letGo ends the hold, and checks what it is told.
func (r *hold) letGo() {
	if r == nil {
		return
	}
	r.told(r.a.call("release", r.release))
}

// told checks what a release has returned.
func (r *hold) told(err error) {
	w := r.a.w
	cause := context.Cause(r.Context())
	wasLost := errors.Is(cause, lease.ErrLost)
	_, disturbed := w.touched(r)
	there := slices.ContainsFunc(w.srv.Keys(r.Key()), func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == int64(r.Token()) })
	switch {
	case err == nil && wasLost:
		w.fail("%s: released without an error after %v", r.Key(), cause)
	case err == nil && there:
		w.fail("%s: released without an error, and the key is there", r.Key())
	case err == nil:
	case errors.Is(err, lease.ErrLost) && (disturbed || wasLost):
		// The loss itself is checked with the history.
	case errors.Is(err, lease.ErrLost) && w.fault.class == outage && r.a == w.subject:
		// The lease was lost before the server had confirmed.
	case errors.Is(err, lease.ErrClosed):
		// The session was closed before the server had confirmed.
	case errors.Is(err, lease.ErrLost):
		w.fail("%s: told to be lost, and it was not: %v", r.Key(), err)
	case wasLost:
		w.fail("%s: released with %v after %v", r.Key(), err, cause)
	default:
		r.a.judge("release", err)
	}
}

func (w *world) touched(r *hold) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.disturbed[int64(r.Token())]
	return at, ok
}
