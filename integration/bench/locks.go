package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/lease"
)

// locker is one goroutine's lock, which it uses again for each turn, as users of etcd's Mutex do.
type locker interface {
	Lock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

type session struct {
	locker func(name string) locker
	close  func(ctx context.Context) error
}

// implementation is a kind of lock or election that bench compares.
type implementation struct {
	open func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error)
	// alone means that each goroutine that contends for a name needs its own session.
	alone bool
}

func newOurs(newLocker func(s *lease.Session, name string) locker) implementation {
	return implementation{open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := lease.NewSession(ctx, client, lease.Options{TTL: ttl})
		return session{func(name string) locker { return newLocker(s, name) }, s.Close}, err
	}}
}

func leasefence() implementation {
	return newOurs(func(s *lease.Session, name string) locker { return &ourLocker{session: s, name: name} })
}

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

// candidates are leasefence's candidates; a turn is a leadership.
func candidates() implementation {
	return newOurs(func(s *lease.Session, name string) locker { return &ourCandidate{session: s, name: name} })
}

type ourCandidate struct {
	session *lease.Session
	name    string
	leads   *election.Leadership
}

func (c *ourCandidate) Lock(ctx context.Context) (err error) {
	c.leads, err = election.Campaign(ctx, c.session, c.name, election.Options{Value: "bench"})
	return err
}

func (c *ourCandidate) Unlock(ctx context.Context) error { return c.leads.Resign(ctx) }

func newTheirs(newLocker func(s *concurrency.Session, name string) locker) implementation {
	return implementation{alone: true, open: func(_ context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second))) // ends when its client is closed
		return session{func(name string) locker { return newLocker(s, name) }, func(context.Context) error { return s.Close() }}, err
	}}
}

func mutex() implementation {
	return newTheirs(func(s *concurrency.Session, name string) locker { return concurrency.NewMutex(s, name) })
}

func theirCandidates() implementation {
	return newTheirs(func(s *concurrency.Session, name string) locker {
		return theirCandidate{concurrency.NewElection(s, name)}
	})
}

type theirCandidate struct{ *concurrency.Election }

func (c theirCandidate) Lock(ctx context.Context) error   { return c.Campaign(ctx, "bench") }
func (c theirCandidate) Unlock(ctx context.Context) error { return c.Resign(ctx) }
