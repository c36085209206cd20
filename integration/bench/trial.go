package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// trial is one round of one implementation: its clients and sessions, all new, and names that no other trial has used,
// so that what one leaves behind in the server's index does not slow the next.
type trial struct {
	endpoints []string
	impl      implementation
	prefix    string
	scale     scale
	ttl       time.Duration
	load      *load // somebody else's, nil if none

	clients  []*clientv3.Client
	sessions []session
}

// name makes a lock's name out of parts.
func (t *trial) name(parts ...any) string {
	return t.prefix + strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(parts...)), " ", "-")
}

// client connects to the server. It is closed with the trial.
func (t *trial) client() (*clientv3.Client, error) {
	c, err := t.connect()
	if err == nil {
		t.clients = append(t.clients, c)
	}
	return c, err
}

// connect is client, closed by the caller.
func (t *trial) connect() (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: t.endpoints, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}

// session opens a session of the implementation. It is closed with the trial.
func (t *trial) session(ctx context.Context, client *clientv3.Client) (session, error) {
	s, err := t.impl.open(ctx, client, t.ttl)
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	t.sessions = append(t.sessions, s)
	return s, nil
}

// processes are n sessions with a client each.
func (t *trial) processes(ctx context.Context, n int) ([]session, error) {
	sessions := make([]session, n)
	for i := range sessions {
		c, err := t.client()
		if err != nil {
			return nil, err
		}
		if sessions[i], err = t.session(ctx, c); err != nil {
			return nil, err
		}
	}
	return sessions, nil
}

// rivals are n lockers of one name, with a client and a session each, as in n processes.
func (t *trial) rivals(ctx context.Context, n int, name string) ([]locker, error) {
	sessions, err := t.processes(ctx, n)
	lockers := make([]locker, len(sessions))
	for i, s := range sessions {
		lockers[i] = s.locker(name)
	}
	return lockers, err
}

// housemates are n lockers of one process, which has one client, and one session where that is enough for one name.
func (t *trial) housemates(ctx context.Context, n int, name string) ([]locker, error) {
	c, err := t.client()
	if err != nil {
		return nil, err
	}
	lockers := make([]locker, n)
	var s session
	for i := range lockers {
		if s == nil || t.impl.alone {
			if s, err = t.session(ctx, c); err != nil {
				return nil, err
			}
		}
		lockers[i] = s.locker(name)
	}
	return lockers, nil
}

// owners are n lockers of one session, each of a name of its own.
func (t *trial) owners(ctx context.Context, n int) ([]locker, session, error) {
	c, err := t.client()
	if err != nil {
		return nil, nil, err
	}
	s, err := t.session(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	lockers := make([]locker, n)
	for i := range lockers {
		lockers[i] = s.locker(t.name(i))
	}
	return lockers, s, nil
}

// counters reads what the servers have counted so far.
func (t *trial) counters(ctx context.Context) (counters, error) {
	return readCounters(ctx, t.endpoints)
}

// close ends sessions and clients. It has time of its own, since ctx may have ended.
func (t *trial) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	errs := make([]error, len(t.sessions))
	var wg sync.WaitGroup
	for i, s := range t.sessions {
		wg.Go(func() { errs[i] = s.close(ctx) })
	}
	wg.Wait()
	for _, c := range t.clients {
		errs = append(errs, c.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// measure runs work and tells how long it took and what it cost the servers.
func (t *trial) measure(ctx context.Context, work func() error) (sample, error) {
	before, err := t.counters(ctx)
	if err != nil {
		return sample{}, err
	}
	others := t.otherWrites()
	start := time.Now()
	if err := work(); err != nil {
		return sample{}, err
	}
	elapsed := time.Since(start)
	others = t.otherWrites() - others
	after, err := t.counters(ctx)
	s := sample{elapsed: elapsed, cost: after.minus(before)}
	if t.load != nil {
		s.cost = s.cost.minus(counters{unary: others, commits: others})
		s.note("other writes/s", others/elapsed.Seconds())
	}
	return s, err
}

// otherWrites tells how many of the load's writes are done.
func (t *trial) otherWrites() float64 {
	if t.load == nil {
		return 0
	}
	return float64(t.load.done.Load())
}
