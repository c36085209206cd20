package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/lease"
)

// locker is one goroutine's way to one lock, used again for each of its turns, as users of etcd's Mutex do.
type locker interface {
	Lock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

// session is what lockers stand on.
type session interface {
	locker(name string) locker
	close(ctx context.Context) error
}

// implementation is one of those that are compared.
type implementation struct {
	name string // of the peer, for people
	open func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error)
	// alone: goroutines that contend for one name need a session each.
	alone bool
	// closesHeld: a session can be closed with all its locks held, and lets go of them.
	closesHeld bool
}

// leasefence is the implementation that this is about.
func leasefence(separate bool) implementation {
	return implementation{closesHeld: true, open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := lease.NewSession(ctx, client, lease.Options{TTL: ttl, SeparateCommits: separate})
		if err != nil {
			return nil, err
		}
		return ourSession{s}, nil
	}}
}

type ourSession struct{ *lease.Session }

func (s ourSession) locker(name string) locker       { return &ourLocker{session: s.Session, name: name} }
func (s ourSession) close(ctx context.Context) error { return s.Close(ctx) }

type ourLocker struct {
	session *lease.Session
	name    string
	lock    *lease.Lock
}

func (l *ourLocker) Lock(ctx context.Context) (err error) {
	l.lock, err = l.session.Lock(ctx, l.name)
	return err
}

func (l *ourLocker) Unlock(ctx context.Context) error { return l.lock.Unlock(ctx) }

// mutex is the concurrency package of etcd's client.
func mutex() implementation {
	return implementation{name: "mutex", alone: true, open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := newMutexSession(ctx, client, ttl)
		if err != nil {
			return nil, err
		}
		return mutexSession{s}, nil
	}}
}

// newMutexSession opens a session that ctx does not end: it ends with its client, unless it is closed before.
func newMutexSession(ctx context.Context, client *clientv3.Client, ttl time.Duration) (*concurrency.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
}

type mutexSession struct{ *concurrency.Session }

func (s mutexSession) locker(name string) locker { return concurrency.NewMutex(s.Session, name) }

func (s mutexSession) close(context.Context) error { return s.Close() }

// mutexPerSession is etcd's concurrency package as most tutorials show it: a new session for each critical section.
func mutexPerSession() implementation {
	return implementation{name: "mutex", open: func(_ context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		return tutorial{client, ttl}, nil
	}}
}

type tutorial struct {
	client *clientv3.Client
	ttl    time.Duration
}

func (t tutorial) locker(name string) locker   { return &tutorialLocker{tutorial: t, name: name} }
func (t tutorial) close(context.Context) error { return nil }

type tutorialLocker struct {
	tutorial
	name    string
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (l *tutorialLocker) Lock(ctx context.Context) (err error) {
	if l.session, err = newMutexSession(ctx, l.client, l.ttl); err != nil {
		return err
	}
	l.mutex = concurrency.NewMutex(l.session, l.name)
	return l.mutex.Lock(ctx)
}

func (l *tutorialLocker) Unlock(ctx context.Context) error {
	if err := l.mutex.Unlock(ctx); err != nil {
		return err
	}
	return l.session.Close()
}
