//go:build unix

package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/stage"
	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// play plays the scenes. Each begins where the one before has ended, with all three processes in the election.
func (s *show) play(ctx context.Context) error {
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
func (s *show) gather(ctx context.Context) error {
	if err := s.start(ctx, "A"); err != nil {
		return err
	}
	if _, err := s.Await(ctx, "A", stage.Leads); err != nil {
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
func (s *show) crash(ctx context.Context) error {
	if err := s.Begin(ctx, "The leader dies: another one leads once its lease has run out"); err != nil {
		return err
	}
	a := s.Nodes["A"]
	began := time.Now()
	if err := s.Signal(a, syscall.SIGKILL, "KILL"); err != nil {
		return err
	}
	next, err := s.TakeOver(ctx, "B", fmt.Sprintf("A is dead; its lease of %v is not renewed", ttl))
	if err != nil {
		return err
	}
	s.After("A was killed", began, next)
	s.Forget(a) // it has ended, and only its log is still read
	s.TL.Add(timeline.Main, 0, timeline.Plain, "starts A again")
	if err := s.start(ctx, "A"); err != nil {
		return err
	}
	return s.settle(ctx, "B", "B", "C", "A")
}

// pause stops the leader, B, in the middle of a step of its work, and lets it go on when another one leads.
func (s *show) pause(ctx context.Context) error {
	if err := s.Begin(ctx, "The leader is paused before a write, and wakes up when another one leads"); err != nil {
		return err
	}
	b := s.Nodes["B"]
	old, err := s.LastOf(ctx, "B", stage.Leads)
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
	if err := s.Signal(b, syscall.SIGSTOP, "STOP"); err != nil {
		return err
	}
	if _, err := s.Await(ctx, "B", stage.HasStopped); err != nil {
		return err
	}
	open()
	if answer, err := s.request(ctx, b, promptness/2, http.MethodGet, "/healthz"); err == nil {
		return fmt.Errorf("the stopped B says %s", answer)
	}
	s.TL.Add(b.Actor, 0, timeline.Plain, "GET /healthz: no answer")
	next, err := s.TakeOver(ctx, "C", fmt.Sprintf("B stands still; its lease of %v is not renewed", ttl))
	if err != nil {
		return err
	}
	s.After("B was stopped", began, next)
	// The ledger cannot know C's token before C has claimed with it.
	if err := s.Wrote(ctx, next); err != nil {
		return err
	}
	return s.wakeUp(ctx, b, old)
}

// wakeUp lets B go on. Its write reaches the ledger with the old token.
func (s *show) wakeUp(ctx context.Context, b *stage.Process, old stage.Event) error {
	from := s.Record.Len()
	if err := s.Signal(b, syscall.SIGCONT, "CONT"); err != nil {
		return err
	}
	if err := s.LateWrite(ctx, from, old); err != nil {
		return err
	}
	if !s.NoFence {
		e, err := s.Await(ctx, "B", stage.IsRefused)
		if err != nil {
			return err
		}
		if e.More["leadership"] == nil {
			return errors.New("the leadership of the refused B has not ended")
		}
	}
	if _, err := s.Await(ctx, "B", stage.HasLost); err != nil {
		return err
	}
	return s.settle(ctx, "C", "C", "A", "B")
}

// transfer has the leader, C, hand over to B. A, who waits before B, enters again behind it.
func (s *show) transfer(ctx context.Context) error {
	if err := s.Begin(ctx, "The leader hands over to a candidate of our choice"); err != nil {
		return err
	}
	began := time.Now()
	answer, err := s.request(ctx, s.Nodes["C"], stage.Patience, http.MethodPost, "/transfer?to=B")
	if err == nil && answer != "200 ok" {
		err = errors.New(answer)
	}
	if err != nil {
		return fmt.Errorf("transfer to B: %w", err)
	}
	next, err := s.TakeOver(ctx, "B", "C hands over")
	if err != nil {
		return err
	}
	s.After("C was asked", began, next)
	return s.settle(ctx, "B", "B", "A", "C")
}

// stop ends the leader, B, in good order.
func (s *show) stop(ctx context.Context) error {
	if err := s.Begin(ctx, "The leader is told to stop: it resigns, and the next one leads at once"); err != nil {
		return err
	}
	b := s.Nodes["B"]
	began := time.Now()
	if err := s.Signal(b, syscall.SIGTERM, "TERM"); err != nil {
		return err
	}
	next, err := s.TakeOver(ctx, "A", "B resigns")
	if err != nil {
		return err
	}
	s.After("B was told to stop", began, next)
	if err := s.EndOf(ctx, b); err != nil {
		return err
	}
	return s.settle(ctx, "A", "A", "C")
}

// end ends the others too, those who wait first.
func (s *show) end(ctx context.Context) error {
	if err := s.Begin(ctx, "All stop"); err != nil {
		return err
	}
	for _, id := range []string{"C", "A"} {
		p := s.Nodes[id]
		if err := s.Signal(p, syscall.SIGTERM, "TERM"); err != nil {
			return err
		}
		if err := s.EndOf(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
