package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// scenario is what happens, step by step. A worker goes on only when it is told to, so the steps are always the same.
type scenario struct {
	tl      *timeline.Timeline
	cluster *cluster
	ledger  *ledger.Ledger
	a, b    *child

	ttl            time.Duration // as granted to A
	keyA           []byte        // in etcd
	tokenA, tokenB fence.Token   // as issued by etcd
	stopped        time.Time     // when A was
}

// contend has A take the lock and B wait for it.
func (s *scenario) contend(ctx context.Context) error {
	r, err := s.a.expect(ctx, ready)
	if err != nil {
		return err
	}
	s.ttl = r.TTL
	if _, err := s.b.expect(ctx, ready); err != nil {
		return err
	}
	if s.tokenA, s.keyA, err = s.enter(ctx, s.a, "A's key is the oldest in the queue"); err != nil {
		return err
	}
	if err := s.expectLock(ctx, s.a, s.tokenA); err != nil {
		return err
	}
	s.tokenB, _, err = s.enter(ctx, s.b, "B's key stands behind it: B waits")
	return err
}

// enter lets a worker ask for the lock and waits until etcd has it in the queue. The token is the revision at which
// its key was created.
func (s *scenario) enter(ctx context.Context, c *child, text string) (fence.Token, []byte, error) {
	if err := c.goOn(); err != nil {
		return 0, nil, err
	}
	event, err := s.cluster.entered(ctx, c.name)
	if err != nil {
		return 0, nil, err
	}
	token, err := fence.NewToken(0, event.Kv.CreateRevision)
	if err != nil {
		return 0, nil, err
	}
	s.tl.Add(timeline.Etcd, token, timeline.Plain, text)
	return token, event.Kv.Key, nil
}

// expectLock waits until a worker says that it has the lock.
func (s *scenario) expectLock(ctx context.Context, c *child, token fence.Token) error {
	r, err := c.expect(ctx, locked)
	if err == nil && r.Token != token {
		err = fmt.Errorf("%s has the token %v, but etcd issued %v", c.name, r.Token, token)
	}
	return err
}

// write lets A write its first entry.
func (s *scenario) write(ctx context.Context) error {
	s.tl.Begin("A holds the lock and writes")
	return s.writeOnce(ctx, s.a)
}

func (s *scenario) writeOnce(ctx context.Context, c *child) error {
	for _, k := range []kind{writing, written} {
		if err := c.goOn(); err != nil {
			return err
		}
		if _, err := c.expect(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// pause stops A right between its look at the lock and its write.
func (s *scenario) pause(ctx context.Context) error {
	s.tl.Begin("A is paused between its look at the lock and its write")
	if err := s.a.goOn(); err != nil {
		return err
	}
	if _, err := s.a.expect(ctx, writing); err != nil {
		return err
	}
	if err := pause(s.a.pid()); err != nil {
		return fmt.Errorf("stop A: %w", err)
	}
	s.stopped = time.Now()
	s.tl.Add(timeline.Main, 0, timeline.Plain, "sends SIGSTOP to A: it stands still now")
	// From here on nothing but the pause keeps A from its write.
	return s.a.goOn()
}

// takeOver waits for the end of A's lease and lets B write.
func (s *scenario) takeOver(ctx context.Context) error {
	s.tl.Begin("B takes over")
	stop := s.tl.Waiting(fmt.Sprintf("A stands still; its lease of %v is not renewed", s.ttl))
	defer stop()
	if err := s.cluster.left(ctx, "A", s.keyA); err != nil {
		return err
	}
	stop()
	s.tl.Add(timeline.Etcd, s.tokenA, timeline.Plain, "A's lease has run out: its key is gone")
	if err := s.expectLock(ctx, s.b, s.tokenB); err != nil {
		return err
	}
	return s.writeOnce(ctx, s.b)
}

// wakeUp resumes A, past its TTL, and sees what becomes of its write.
func (s *scenario) wakeUp(ctx context.Context) error {
	s.tl.Begin("A wakes up and sends its write; B still holds the lock")
	select {
	case <-time.After(time.Until(s.stopped.Add(s.ttl))):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.tl.Add(timeline.Main, 0, timeline.Plain, fmt.Sprintf("sends SIGCONT to A, after %.2fs; its TTL is %v", time.Since(s.stopped).Seconds(), s.ttl))
	if err := resume(s.a.pid()); err != nil {
		return fmt.Errorf("resume A: %w", err)
	}
	if _, err := s.a.expect(ctx, refused, written); err != nil {
		return err
	}
	if err := s.a.goOn(); err != nil {
		return err
	}
	r, err := s.a.expect(ctx, unlocked)
	if err == nil && !r.Lost {
		err = errors.New("worker A has not noticed that its lock was lost")
	}
	return err
}

// finish lets both workers end.
func (s *scenario) finish(ctx context.Context) error {
	if err := s.b.goOn(); err != nil {
		return err
	}
	r, err := s.b.expect(ctx, unlocked)
	if err == nil && r.Lost {
		err = errors.New("worker B has lost its lock too: is this machine very busy?")
	}
	if err != nil {
		return err
	}
	for _, c := range []*child{s.a, s.b} {
		if err := c.goOn(); err != nil {
			return err
		}
		if err := c.end(ctx); err != nil {
			return err
		}
	}
	return nil
}
