//go:build unix

package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// play plays the scenes. Each begins where the one before has ended, with all three processes in the election.
func (s *stage) play(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the scenes took longer than %v", limit))
	defer cancel()
	for _, scene := range []func(context.Context) error{s.gather, s.crash, s.pause, s.transfer, s.stop, s.end} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gather has A lead, B and C wait.
func (s *stage) gather(ctx context.Context) error {
	if err := s.start(ctx, "A"); err != nil {
		return err
	}
	if _, err := s.await(ctx, "A", leads); err != nil {
		return err
	}
	for i, id := range []string{"B", "C"} {
		if err := s.start(ctx, id); err != nil {
			return err
		}
		if err := s.queued(ctx, []string{"A", "B", "C"}[:i+2]...); err != nil {
			return err
		}
	}
	return s.settle(ctx, "A", "A", "B", "C")
}

// crash kills the leader, A.
func (s *stage) crash(ctx context.Context) error {
	if err := s.begin(ctx, "The leader dies: another one leads once its lease has run out"); err != nil {
		return err
	}
	a := s.nodes["A"]
	began := time.Now()
	if err := s.signal(a, syscall.SIGKILL, "KILL"); err != nil {
		return err
	}
	next, err := s.takeOver(ctx, "B", fmt.Sprintf("A is dead; its lease of %v is not renewed", ttl))
	if err != nil {
		return err
	}
	s.after("A was killed", began, next)
	a.kill() // which has nothing more to do than to wait for what it has logged
	s.tl.Add(timeline.Main, 0, timeline.Plain, "starts A again")
	if err := s.start(ctx, "A"); err != nil {
		return err
	}
	return s.settle(ctx, "B", "B", "C", "A")
}

// pause stops the leader, B, in the middle of a step of its work, and lets it go on when another one leads.
func (s *stage) pause(ctx context.Context) error {
	if err := s.begin(ctx, "The leader is paused before a write, and wakes up when another one leads"); err != nil {
		return err
	}
	b := s.nodes["B"]
	old, err := s.lastOf(ctx, "B", leads)
	if err != nil {
		return err
	}
	stands, open := s.door.shut()
	defer open()
	select {
	case <-stands: // B has begun a step: it reads the ledger, to write then
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	began := time.Now()
	if err := s.signal(b, syscall.SIGSTOP, "STOP"); err != nil {
		return err
	}
	if _, err := s.await(ctx, "B", hasStopped); err != nil {
		return err
	}
	open()
	if answer, err := s.request(ctx, b, promptness/2, http.MethodGet, "/healthz"); err == nil {
		return fmt.Errorf("the stopped B says %s", answer)
	}
	s.tl.Add(b.actor, 0, timeline.Plain, "GET /healthz: no answer")
	next, err := s.takeOver(ctx, "C", fmt.Sprintf("B stands still; its lease of %v is not renewed", ttl))
	if err != nil {
		return err
	}
	s.after("B was stopped", began, next)
	// Until C has told the ledger of its token, that cannot know of it.
	if err := s.wrote(ctx, next); err != nil {
		return err
	}
	return s.wakeUp(ctx, b, old.token)
}

// wakeUp lets B go on. Its write reaches the ledger with the old token.
func (s *stage) wakeUp(ctx context.Context, b *process, old fence.Token) error {
	from := s.record.len()
	if err := s.signal(b, syscall.SIGCONT, "CONT"); err != nil {
		return err
	}
	if _, err := s.record.await(ctx, from, func(e event) bool {
		return e.node == nil && e.token == old // accepted or not: the summary tells
	}); err != nil {
		return fmt.Errorf("wait for B's late write: %w", err)
	}
	if !s.opts.NoFence {
		e, err := s.await(ctx, "B", isRefused)
		if err != nil {
			return err
		}
		if e.more["leadership"] == nil {
			return errors.New("the leadership of the refused B has not ended")
		}
	}
	if _, err := s.await(ctx, "B", hasLost); err != nil {
		return err
	}
	return s.settle(ctx, "C", "C", "A", "B")
}

// transfer has the leader, C, hand over to B. A, who waits before B, lets it pass.
func (s *stage) transfer(ctx context.Context) error {
	if err := s.begin(ctx, "The leader hands over to a candidate of our choice"); err != nil {
		return err
	}
	began := time.Now()
	answer, err := s.request(ctx, s.nodes["C"], patience, http.MethodPost, "/transfer?to=B")
	if err == nil && answer != "200 ok" {
		err = errors.New(answer)
	}
	if err != nil {
		return fmt.Errorf("transfer to B: %w", err)
	}
	next, err := s.takeOver(ctx, "B", "C hands over")
	if err != nil {
		return err
	}
	s.after("C was asked", began, next)
	return s.settle(ctx, "B", "B", "A", "C")
}

// stop ends the leader, B, in good order.
func (s *stage) stop(ctx context.Context) error {
	if err := s.begin(ctx, "The leader is told to stop: it resigns, and the next one leads at once"); err != nil {
		return err
	}
	b := s.nodes["B"]
	began := time.Now()
	if err := s.signal(b, syscall.SIGTERM, "TERM"); err != nil {
		return err
	}
	next, err := s.takeOver(ctx, "A", "B resigns")
	if err != nil {
		return err
	}
	s.after("B was told to stop", began, next)
	if err := s.endOf(ctx, b); err != nil {
		return err
	}
	return s.settle(ctx, "A", "A", "C")
}

// end ends the others too, those who wait first.
func (s *stage) end(ctx context.Context) error {
	if err := s.begin(ctx, "All stop"); err != nil {
		return err
	}
	for _, id := range []string{"C", "A"} {
		p := s.nodes[id]
		if err := s.signal(p, syscall.SIGTERM, "TERM"); err != nil {
			return err
		}
		if err := s.endOf(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
