package main

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
)

// electionOfOurs is leasefence where a turn is a leadership.
func electionOfOurs(separate bool) implementation {
	locks := leasefence(separate)
	return implementation{open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := locks.open(ctx, client, ttl)
		if err != nil {
			return nil, err
		}
		return ourCandidates{s.(ourSession)}, nil //nolint:forcetypeassert // leasefence makes no others
	}}
}

type ourCandidates struct{ ourSession }

func (s ourCandidates) locker(name string) locker { return &ourCandidate{session: s, name: name} }

type ourCandidate struct {
	session ourCandidates
	name    string
	leads   *election.Leadership
}

func (c *ourCandidate) Lock(ctx context.Context) (err error) {
	c.leads, err = election.Campaign(ctx, c.session.Session, c.name, election.Options{Value: "bench"})
	return err
}

func (c *ourCandidate) Unlock(ctx context.Context) error { return c.leads.Resign(ctx) }

// electionOfTheirs is concurrency.Election.
func electionOfTheirs() implementation {
	locks := mutex()
	return implementation{name: "election", alone: true, open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := locks.open(ctx, client, ttl)
		if err != nil {
			return nil, err
		}
		return theirCandidates{s.(mutexSession)}, nil //nolint:forcetypeassert // mutex makes no others
	}}
}

type theirCandidates struct{ mutexSession }

func (s theirCandidates) locker(name string) locker {
	return theirCandidate{concurrency.NewElection(s.Session, name)}
}

type theirCandidate struct{ *concurrency.Election }

func (c theirCandidate) Lock(ctx context.Context) error   { return c.Campaign(ctx, "bench") }
func (c theirCandidate) Unlock(ctx context.Context) error { return c.Resign(ctx) }

// crashTTL is the smallest that a server grants with its default election timeout.
const crashTTL = 2 * time.Second

// crash measures the time from the end of a leader's connection, without a word to the server, until the candidate that
// waits for it leads. Each election has a leader with a client and a session of its own, as in a process that dies; they
// do not die in step with the server's looking for expired leases.
func crash(ctx context.Context, t *trial) ([]sample, error) {
	t.ttl = crashTTL
	sessions, err := t.processes(ctx, t.scale.crashes)
	if err != nil {
		return nil, err
	}
	waiters := make([]locker, len(sessions))
	for i, s := range sessions {
		waiters[i] = s.locker(t.name("election", i))
	}
	leaders := make([]*mortal, len(waiters))
	if err := each(ctx, len(leaders), func(ctx context.Context, i int) (err error) {
		leaders[i], err = t.mortal(ctx, t.name("election", i))
		return err
	}); err != nil {
		return nil, err
	}
	var (
		mu        sync.Mutex
		latencies []time.Duration
	)
	s, err := t.measure(ctx, func() error {
		return each(ctx, len(waiters), func(ctx context.Context, i int) error {
			led := make(chan error, 1)
			go func() { led <- waiters[i].Lock(ctx) }()
			if err := t.standing(ctx, t.name("election", i), 2); err != nil {
				return err
			}
			if err := sleep(ctx, time.Duration(i)*crashTTL/time.Duration(len(waiters))); err != nil {
				return err
			}
			died := time.Now()
			leaders[i].die() //nolint:contextcheck // it has no time left
			if err := <-led; err != nil {
				return err
			}
			mu.Lock()
			latencies = append(latencies, time.Since(died))
			mu.Unlock()
			return waiters[i].Unlock(ctx)
		})
	})
	s.ops, s.latencies = len(latencies), latencies
	return []sample{s}, err
}

// mortal is a leader with a client of its own, which is not the trial's to close.
type mortal struct {
	client  *clientv3.Client
	session session
}

func (t *trial) mortal(ctx context.Context, name string) (*mortal, error) {
	client, err := t.connect()
	if err != nil {
		return nil, err
	}
	m := &mortal{client: client}
	if m.session, err = t.impl.open(ctx, client, t.ttl); err == nil {
		err = m.session.locker(name).Lock(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return m, nil
}

// die ends the connection. What fails then is what dies with it.
func (m *mortal) die() {
	_ = m.client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.session.close(ctx)
}
