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

// hold is a handle and what happened to it.
type hold struct {
	handle

	a       *actor
	granted time.Time
	release func(context.Context) error
	ended   time.Time // guarded by world.mu; zero: it is live
	said    string    // the last value that was proclaimed and confirmed
}

// held records a handle that was granted to a call made at asked, and checks the grant.
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
	_, mine := w.disturbed[int64(r.Token())] // its turn came just before the operator; the handle will end
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
	now := w.fault.suspends && w.hit.Equal(r.granted) // the host may have been suspended after the grant
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

// node is a node of a path that is held: the last one, or one above it.
type node struct {
	*lease.TreeLock

	name, key string
	above     bool
}

func (n node) Name() string { return n.name }
func (n node) Key() string  { return n.key }

// grant is the result of a call: the handles, and the function that releases all of them.
type grant struct {
	release func(context.Context) error
	held    []handle
}

// take repeats a call until it has got its locks, and returns a hold that releases all of them. It returns nil if the
// call only tries and somebody else has the lock.
func take[L any](a *actor, what string, get func(ctx context.Context) (L, error), of func(L) grant) (r *hold) {
	a.untilDone(what, func(ctx context.Context) error {
		asked := time.Now()
		l, err := get(ctx)
		switch {
		case errors.Is(err, lease.ErrLocked) && strings.HasPrefix(what, "try"):
			return nil
		case err != nil:
			return err
		}
		got := of(l)
		for _, h := range got.held {
			r = a.held(h, asked, got.release) //nolint:contextcheck // the hold outlives the call
		}
		return nil
	})
	return r
}

func (a *actor) lockTree(path string) *hold {
	lock := func(ctx context.Context) (*lease.TreeLock, error) { return a.s.LockTree(ctx, path) }
	return take(a, "lockTree", lock, func(l *lease.TreeLock) grant {
		got := grant{release: l.Unlock}
		parts := strings.Split(path, "/")
		for i := range parts {
			name := strings.Join(parts[:i+1], "/~")
			got.held = append(got.held, node{l, name, a.w.keyOf(name, l.Token()), i+1 < len(parts)})
		}
		return got
	})
}

// locker is a method of a session that takes a lock.
type locker[L any] func(ctx context.Context, name string, opts ...lease.LockOption) (L, error)

func (lock locker[L]) of(name string) func(context.Context) (L, error) {
	return func(ctx context.Context) (L, error) { return lock(ctx, name) }
}

func (a *actor) rlock(name string) *hold { return a.read("rlock", a.s.RLock, name) }
func (a *actor) tryR(name string) *hold  { return a.read("tryR", a.s.TryRLock, name) }

func (a *actor) read(what string, lock locker[*lease.ReadLock], name string) *hold {
	return take(a, what, lock.of(name), func(l *lease.ReadLock) grant { return grant{l.Unlock, []handle{reading{l}}} })
}

// part is one lock of a set.
type part struct {
	*lease.LockSet

	name, key string
}

func (p part) Name() string { return p.name }
func (p part) Key() string  { return p.key }

func (a *actor) lockAll(names ...string) *hold { return a.all("lockAll", a.s.LockAll, names) }
func (a *actor) tryAll(names ...string) *hold  { return a.all("tryAll", a.s.TryLockAll, names) }

func (a *actor) all(what string, lock func(context.Context, ...string) (*lease.LockSet, error), names []string) *hold {
	get := func(ctx context.Context) (*lease.LockSet, error) { return lock(ctx, names...) }
	return take(a, what, get, func(l *lease.LockSet) grant {
		got := grant{release: l.Unlock}
		for _, name := range l.Names() {
			got.held = append(got.held, part{l, name, a.w.keyOf(name, l.Token())})
		}
		return got
	})
}

// slot is a permit.
type slot struct {
	*lease.Permit

	key string
}

func (s slot) Key() string { return s.key }

// One of two permits.
func (a *actor) permit() *hold    { return a.onePermit("permit", a.s.Permit) }
func (a *actor) tryPermit() *hold { return a.onePermit("tryPermit", a.s.TryPermit) }

type permitter func(ctx context.Context, name string, of int, opts ...lease.LockOption) (*lease.Permit, error)

func (a *actor) onePermit(what string, permit permitter) *hold {
	get := func(ctx context.Context) (*lease.Permit, error) { return permit(ctx, "a", 2) }
	return take(a, what, get, func(p *lease.Permit) grant {
		return grant{p.Unlock, []handle{slot{p, a.w.keyOf(p.Name(), p.Token())}}}
	})
}

func (a *actor) lock(name string) *hold { return a.plain("lock", a.s.Lock, name) }
func (a *actor) try(name string) *hold  { return a.plain("try", a.s.TryLock, name) }

func (a *actor) plain(what string, lock locker[*lease.Lock], name string) *hold {
	return take(a, what, lock.of(name), func(l *lease.Lock) grant { return grant{l.Unlock, []handle{l}} })
}

func (a *actor) campaign(name string, opts election.Options) *hold {
	get := func(ctx context.Context) (*election.Leadership, error) {
		return election.Campaign(ctx, a.s, name, opts)
	}
	r := take(a, "campaign", get, func(l *election.Leadership) grant { return grant{l.Resign, []handle{l}} })
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
	_, disturbed := w.touched(r)
	there := slices.ContainsFunc(w.srv.Keys(r.Key()), func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == int64(r.Token()) })
	switch {
	case err == nil && wasLost:
		w.fail("%s: released without an error after %v", r.Key(), cause)
	case err == nil && there:
		w.fail("%s: released without an error, but the key exists", r.Key())
	case err == nil:
	case errors.Is(err, lease.ErrLost) && (disturbed || wasLost):
		// check compares the loss with the history.
	case errors.Is(err, lease.ErrLost) && w.fault.class == outage && r.a == w.subject:
		// The lease was lost before the server had confirmed.
	case errors.Is(err, lease.ErrClosed):
		// The session was closed before the server had confirmed.
	case errors.Is(err, lease.ErrLost):
		w.fail("%s: release reports a loss, but it was not lost: %v", r.Key(), err)
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
