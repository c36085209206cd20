package mix

import (
	"context"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// unlocker is the handle of a lock of any kind.
type unlocker interface {
	handle
	Unlock(ctx context.Context) error
}

// locker is a lock of some kind in its three forms: lock waits, try does not wait, do runs a function under the lock.
type locker struct {
	session   *lease.Session
	enter     history.Event // has the Name, the Verb of lock and do, and other fields of the kind
	tries     history.Verb  // of try
	lock, try func(context.Context) (unlocker, error)
	do        func(context.Context, function) error
	shared    bool
}

// function is what runs under the lock.
type function func(context.Context, fence.Token) error

func exclusive(s *lease.Session, name string) locker {
	return locker{
		session: s, enter: history.Event{Name: name}, tries: history.TryLock,
		lock: func(ctx context.Context) (unlocker, error) { return s.Lock(ctx, name) },
		try:  func(ctx context.Context) (unlocker, error) { return s.TryLock(ctx, name) },
		do:   func(ctx context.Context, fn function) error { return s.Do(ctx, name, fn) },
	}
}

func reader(s *lease.Session, name string) locker {
	return locker{
		session: s, enter: history.Event{Name: name, Verb: history.RLock}, tries: history.TryRLock, shared: true,
		lock: func(ctx context.Context) (unlocker, error) { return ofReader(s.RLock(ctx, name)) },
		try:  func(ctx context.Context) (unlocker, error) { return ofReader(s.TryRLock(ctx, name)) },
		do: func(ctx context.Context, fn function) error {
			return s.RDo(ctx, name, func(ctx context.Context, t fence.ReadToken) error { return fn(ctx, fence.Token(t)) })
		},
	}
}

// reading is the handle of a reader. In the history the verb says that the token is a fence.ReadToken.
type reading struct{ *lease.ReadLock }

func ofReader(l *lease.ReadLock, err error) (unlocker, error) { return reading{l}, err }

func (r reading) Token() fence.Token { return fence.Token(r.ReadLock.Token()) }

func ofSet(s *lease.Session, names []string) locker {
	return locker{
		session: s, enter: history.Event{Name: names[0], With: names[1:], Verb: history.SetLock}, tries: history.TrySet,
		lock: func(ctx context.Context) (unlocker, error) { return withoutKey(s.LockAll(ctx, names...)) },
		try:  func(ctx context.Context) (unlocker, error) { return withoutKey(s.TryLockAll(ctx, names...)) },
		do:   func(ctx context.Context, fn function) error { return s.DoAll(ctx, names, fn) },
	}
}

func ofTree(s *lease.Session, path string) locker {
	return locker{
		session: s, enter: history.Event{Name: nodeOf(path), Verb: history.TreeLock}, tries: history.TryTree,
		lock: func(ctx context.Context) (unlocker, error) { return withoutKey(s.LockTree(ctx, path)) },
		try:  func(ctx context.Context) (unlocker, error) { return withoutKey(s.TryLockTree(ctx, path)) },
		do:   func(ctx context.Context, fn function) error { return s.DoTree(ctx, path, fn) },
	}
}

// nodeOf returns the name of the queue of a tree's node.
func nodeOf(path string) string { return strings.ReplaceAll(path, "/", "/~") }

func ofSemaphore(s *lease.Session, name string, of int) locker {
	return locker{
		session: s, enter: history.Event{Name: name, Value: strconv.Itoa(of), Verb: history.Permit}, tries: history.TryPermit,
		lock: func(ctx context.Context) (unlocker, error) { return withoutKey(s.Permit(ctx, name, of)) },
		try:  func(ctx context.Context) (unlocker, error) { return withoutKey(s.TryPermit(ctx, name, of)) },
		do:   func(ctx context.Context, fn function) error { return s.DoPermit(ctx, name, of, fn) },
	}
}

// keyless is the handle of a set, a node of a tree or a permit. Such handles have no method Key.
type keyless struct{ tenancy }

type tenancy interface {
	Token() fence.Token
	Context() context.Context
	Err() error
	Unlock(ctx context.Context) error
}

func withoutKey(l tenancy, err error) (unlocker, error) { return keyless{l}, err }

func (keyless) Key() string { return "" }

// resource returns the name of the resource that the handle's token is for: the name of the lock, or of the permit's
// slot.
func (k locker) resource(h handle) string {
	if own, ok := h.(keyless); ok {
		if p, ok := own.tenancy.(*lease.Permit); ok {
			return p.Name()
		}
	}
	if s, ok := h.(scoped); ok {
		if p, ok := lease.PermitFromContext(s.ctx); ok {
			return p.Name()
		}
	}
	return k.enter.Name
}

// take acquires a lock in a random form and holds it for a while.
func (w *worker) take(k locker) {
	switch w.rng.IntN(4) {
	case 0:
		w.tryOut(k)
	case 1:
		w.do(k)
	default:
		w.lock(k)
	}
}

func (w *worker) lock(k locker) {
	ctx, cancel := w.wait()
	defer cancel()
	op, on := w.enter(k.enter), k.session.Status().LeaseID
	l, err := k.lock(ctx)
	w.locked(op, k, on, l, err)
}

func (w *worker) tryOut(k locker) {
	k.enter.Verb = k.tries
	ctx, cancel := context.WithTimeout(context.Background(), 2*w.ttl)
	defer cancel()
	op, on := w.enter(k.enter), k.session.Status().LeaseID
	l, err := k.try(ctx)
	w.locked(op, k, on, l, err)
}

func (w *worker) locked(op int64, k locker, on clientv3.LeaseID, l unlocker, err error) {
	if err != nil {
		w.giveUp(op, on, err)
		return
	}
	w.hold(op, k.resource(l), l)
	w.release(op, l, l.Unlock)
}

// do uses the scoped form.
func (w *worker) do(k locker) {
	ctx, cancel := w.wait()
	defer cancel()
	op, on := w.enter(k.enter), k.session.Status().LeaseID
	granted := false
	err := k.do(ctx, func(doing context.Context, token fence.Token) error {
		granted = true
		h := scoped{doing, token, k.session, k.shared}
		w.under(op, k.resource(h), h, cancel) //nolint:contextcheck // requests that are under way do not end with the handle
		return nil
	})
	if granted {
		w.released(op, err)
	} else {
		w.giveUp(op, on, err)
	}
}

// briefly holds a lock while do runs. It returns an error if it does not get the lock.
func (w *worker) briefly(ctx context.Context, k locker, do func()) error {
	op, on := w.enter(k.enter), k.session.Status().LeaseID
	l, err := k.lock(ctx)
	if err != nil {
		w.giveUp(op, on, err)
		return err
	}
	w.granted(op, k.resource(l), l)
	stop := w.recordLoss(op, l) //nolint:contextcheck // the handle has its own
	do()
	stop()
	w.release(op, l, l.Unlock) //nolint:contextcheck // a lock that was granted is released even if ctx has ended
	return nil
}
