package mix

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// held is a lock of any kind, or a leadership, that was granted.
type held struct {
	token    fence.Token     // of a reader: its fence.ReadToken
	shared   bool            // it is a reader's
	key      string          // "" if the handle does not tell it
	resource string          // that the token is for
	ctx      context.Context //nolint:containedctx // of the handle
	err      func() error
	unlock   func(context.Context) error
	explain  func(context.Context, error) error
	proclaim func(context.Context, string) error // nil: it is no leadership
	ended    chan struct{}                       // only of alone: closed when the handle has ended
}

type handle[T any] interface {
	Token() T
	Context() context.Context
	Err() error
	Unlock(ctx context.Context) error
}

func heldBy[T ~int64, H handle[T]](h H, err error) (*held, error) {
	if err != nil {
		return nil, err
	}
	l := &held{token: fence.Token(h.Token()), ctx: h.Context(), err: h.Err, unlock: h.Unlock}
	if k, ok := any(h).(interface{ Key() string }); ok {
		l.key = k.Key()
	}
	if e, ok := any(h).(interface {
		Explain(ctx context.Context, err error) error
	}); ok {
		l.explain = e.Explain
	}
	switch h := any(h).(type) {
	case *lease.ReadLock:
		l.shared = true
	case *lease.Permit:
		l.resource = h.Name() // of its slot
	case leader:
		l.proclaim = h.Proclaim
	}
	return l, nil
}

// locker is a lock of some kind in its three forms: lock waits, try does not wait, do runs a function under the lock. If
// do acquires again after a loss, it calls again with the loss before.
type locker struct {
	session   *lease.Session
	enter     history.Event // has the Name, the Verb and other fields of the kind
	lock, try func(context.Context) (*held, error)
	do        func(ctx context.Context, fn function, again func(error)) error
}

type function func(context.Context, fence.Token) error

func exclusive(s *lease.Session, name string) locker {
	return locker{
		session: s, enter: history.Event{Name: name},
		lock: func(ctx context.Context) (*held, error) { return heldBy(s.Lock(ctx, name)) },
		try:  func(ctx context.Context) (*held, error) { return heldBy(s.TryLock(ctx, name)) },
		do:   func(ctx context.Context, fn function, _ func(error)) error { return s.Do(ctx, name, fn) },
	}
}

func reader(s *lease.Session, name string) locker {
	return locker{
		session: s, enter: history.Event{Name: name, Verb: history.RLock},
		lock: func(ctx context.Context) (*held, error) { return heldBy(s.RLock(ctx, name)) },
		try:  func(ctx context.Context) (*held, error) { return heldBy(s.TryRLock(ctx, name)) },
		do: func(ctx context.Context, fn function, _ func(error)) error {
			return s.RDo(ctx, name, func(ctx context.Context, t fence.ReadToken) error { return fn(ctx, fence.Token(t)) })
		},
	}
}

func ofSet(s *lease.Session, names ...string) locker {
	return locker{
		session: s, enter: history.Event{Name: names[0], With: names[1:], Verb: history.SetLock},
		lock: func(ctx context.Context) (*held, error) { return heldBy(s.LockAll(ctx, names...)) },
		try:  func(ctx context.Context) (*held, error) { return heldBy(s.TryLockAll(ctx, names...)) },
		do:   func(ctx context.Context, fn function, _ func(error)) error { return s.DoAll(ctx, names, fn) },
	}
}

func ofTree(s *lease.Session, path string) locker {
	return locker{
		session: s, enter: history.Event{Name: nodeOf(path), Verb: history.TreeLock},
		lock: func(ctx context.Context) (*held, error) { return heldBy(s.LockTree(ctx, path)) },
		try:  func(ctx context.Context) (*held, error) { return heldBy(s.TryLockTree(ctx, path)) },
		do:   func(ctx context.Context, fn function, _ func(error)) error { return s.DoTree(ctx, path, fn) },
	}
}

// nodeOf returns the name of the queue of a tree's node.
func nodeOf(path string) string { return strings.ReplaceAll(path, "/", "/~") }

func ofSemaphore(s *lease.Session, name string) locker {
	return locker{
		session: s, enter: history.Event{Name: name, Value: strconv.Itoa(permits), Verb: history.Permit},
		lock: func(ctx context.Context) (*held, error) { return heldBy(s.Permit(ctx, name, permits)) },
		try:  func(ctx context.Context) (*held, error) { return heldBy(s.TryPermit(ctx, name, permits)) },
		do:   func(ctx context.Context, fn function, _ func(error)) error { return s.DoPermit(ctx, name, permits, fn) },
	}
}

// candidate is leadership as a lock, without the form try. Its Unlock transfers the leadership to the
// successor, or resigns if there is none.
func candidate(s *lease.Session, name string, opts election.Options, successor string) locker {
	return locker{
		session: s, enter: history.Event{Name: name, Verb: history.Campaign},
		lock: func(ctx context.Context) (*held, error) {
			l, err := election.Campaign(ctx, s, name, opts)
			return heldBy(leader{l, successor}, err)
		},
		do: func(ctx context.Context, fn function, again func(error)) error {
			return election.Run(ctx, s, name, opts, fn, election.WithOnLost(again))
		},
	}
}

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

// stock is etcd's own mutex on a session of its own, which life ends at the latest. live returns nil while the mutex
// counts as held.
func stock(life context.Context, c *client, name string, live func(*mutex) error) locker {
	return locker{
		session: c.current(), enter: history.Event{Name: name, Verb: history.Mutex},
		lock: func(ctx context.Context) (*held, error) {
			granted, err := c.etcd.Grant(ctx, int64(ttl/time.Second))
			if err != nil {
				return nil, err
			}
			s, err := concurrency.NewSession(c.etcd, concurrency.WithLease(granted.ID), concurrency.WithContext(life))
			if err != nil {
				return nil, err
			}
			m := &mutex{Mutex: concurrency.NewMutex(s, name), session: s, etcd: c.etcd, live: live}
			if err := m.Lock(ctx); err != nil {
				return nil, errors.Join(err, s.Close())
			}
			m.owned = m.IsOwner()
			return heldBy(m, nil)
		},
	}
}

// mutex is the handle of etcd's own mutex, which has no deadline.
type mutex struct {
	*concurrency.Mutex
	session *concurrency.Session
	etcd    *clientv3.Client
	live    func(*mutex) error
	owned   clientv3.Cmp // the key and its create revision; a copy, since Mutex.Unlock changes its own while Err may run
}

func (m *mutex) Key() string        { return string(m.owned.KeyBytes()) }
func (m *mutex) Token() fence.Token { return fence.Token(m.owned.GetCompare().GetCreateRevision()) }
func (m *mutex) Err() error         { return m.live(m) }

// Context is never done: etcd's mutex does not report a loss.
func (m *mutex) Context() context.Context { return context.Background() }

func (m *mutex) hasKey() error {
	// With a read: a member answers a transaction without operations from its own state, which may be old.
	resp, err := m.etcd.Txn(m.session.Ctx()).If(m.owned).Else(clientv3.OpGet(m.Key())).Commit()
	if err == nil && !resp.Succeeded {
		err = errors.New("the key is gone")
	}
	return err
}

// Unlock ends the session too.
func (m *mutex) Unlock(ctx context.Context) error {
	return errors.Join(m.Mutex.Unlock(ctx), m.session.Close())
}

// alone lets c hold a lock on a new session while work runs. Nothing else uses the session, so no other call that checks
// the deadline can end the handle. alone does nothing if c does not get the lock. It asks the handle or, with
// history.ByContext, only the handle's context.
func (s *strike) alone(c *client, by history.Verb, kind func(*lease.Session, string) locker, work func(*held)) {
	ctx, cancel := context.WithTimeout(s.ctx, ttl)
	defer cancel()
	session, err := lease.NewSession(ctx, c.etcd, lease.Options{TTL: ttl, Owner: c.name})
	if err != nil {
		return
	}
	s.worker(c, "loner").alone(ctx, by, kind(session, s.ownName("loner")), work)
	closing, end := context.WithTimeout(s.life, ttl)
	defer end()
	_ = session.Close(closing) // otherwise the lease expires
}

// ownName returns a name that nothing else uses.
func (s *strike) ownName(whose string) string {
	return s.round.names.own(whose + strconv.FormatInt(s.tape.ID(), 10))
}

// alone holds a lock while work runs, and asks all the time whether it is live. It reports whether it got the lock.
func (w *worker) alone(ctx context.Context, by history.Verb, k locker, work func(*held)) bool {
	err := w.under(ctx, k, func(op int64, h *held) {
		stop := make(chan struct{})
		h.ended = make(chan struct{})
		go func() {
			defer close(h.ended)
			w.ask(stop, op, h, by)
		}()
		work(h)
		close(stop)
		<-h.ended
	})
	return err == nil
}

// ask asks until stop is closed or the handle has ended.
func (w *worker) ask(stop <-chan struct{}, op int64, h *held, by history.Verb) {
	for ; !closed(stop); pause(stop, 5*time.Millisecond) {
		at := w.log.Now()
		switch {
		case by == "" && !w.look(op, h), by != "" && h.ctx.Err() != nil:
			return
		case by != "":
			w.log.Record(history.Event{At: at, Kind: history.Live, Op: op, Verb: by})
		}
	}
}

// awaitEnd waits until all handles have ended, for at most five TTLs: the checkers excuse a handle that ends late for as
// long as commits are slow, and a TTL more.
func (s *strike) awaitEnd(all ...*held) {
	ctx, cancel := context.WithTimeout(s.ctx, 5*ttl)
	defer cancel()
	for _, h := range all {
		select {
		case <-h.ended:
		case <-ctx.Done():
		}
	}
}

func (h *held) expired() bool {
	lost, ok := errors.AsType[*lease.LostError](context.Cause(h.ctx))
	return ok && lost.Reason == lease.ReasonDeadlinePassed
}

// peers lets c hold etcd's own mutex while work runs and another client waits for it, as a control: c counts as the
// holder until Session.Done is closed, and the checkers count how often the next holder is granted the mutex before
// that. If c does not get the mutex, work runs without a holder. peers waits until the other client has had its turn.
func (s *strike) peers(c *client, work func(holder ...*held)) {
	name := s.ownName("peer") + history.PeerMark
	next := s.clients[(slices.Index(s.clients, c)+1)%len(s.clients)]
	waiter := s.worker(next, "peer")
	var wg sync.WaitGroup
	defer wg.Wait()
	served := s.peer(s.worker(c, "peer"), c, name, ttl, func(holder *held) {
		wg.Go(func() { s.peer(waiter, next, name, 5*ttl, func(*held) {}) })
		work(holder)
	})
	if !served {
		work()
	}
}

// peer holds etcd's own mutex, used as its examples show, while work runs. It reports whether it got the mutex.
func (s *strike) peer(w *worker, c *client, name string, patience time.Duration, work func(*held)) bool {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	return w.alone(ctx, "", stock(s.life, c, name, func(m *mutex) error {
		if closed(m.session.Done()) {
			return lease.ErrLost
		}
		return nil
	}), work)
}
