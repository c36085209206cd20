//go:build unix

package demo

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

// play plays the scenes. Each begins where the one before has ended. Until the leader is told to stop, they end with
// all three processes in the election.
func (s *show) play() {
	s.Begin("Three processes start")
	s.start("A")
	s.Await("A", stage.Leads)
	s.start("B")
	s.queued("A", "B")
	s.start("C")
	s.settle("A", "A", "B", "C")

	s.Begin("The leader dies: another process leads when the lease has expired")
	began := time.Now()
	s.Signal("A", syscall.SIGKILL, "KILL")
	s.After("A was killed", began, s.TakeOver("B"))
	s.Forget("A")
	s.start("A") // again
	s.settle("B", "B", "C", "A")

	s.Begin("The leader is paused before a write, and continues when another process leads")
	s.pause()
	s.settle("C", "C", "A", "B")

	s.Begin("The leader hands over to a candidate of our choice")
	began = time.Now()
	s.Step("C", "transfer by", func(ctx context.Context, c *stage.Process) error {
		const transfer = "POST /transfer?to=B"
		answer, err := ask(ctx, c, transfer, stage.Patience)
		if err == nil && answer != "200 ok" {
			err = errors.New(answer)
		}
		s.Tell(c, transfer+": "+answer)
		return err
	})
	s.After("C was asked", began, s.TakeOver("B"))
	s.settle("B", "B", "A", "C") // A stood before B in the queue, and has entered it again behind B

	s.Begin("The leader is told to stop: it resigns, and the next process leads at once")
	began = time.Now()
	s.Signal("B", syscall.SIGTERM, "TERM")
	s.After("B was told to stop", began, s.TakeOver("A"))
	s.EndOf("B")
	s.settle("A", "A", "C")

	s.Begin("All stop")
	for _, id := range []string{"C", "A"} { // the waiter first: it must not lead in between
		s.Signal(id, syscall.SIGTERM, "TERM")
		s.EndOf(id)
	}
}

// pause stops the leader, B, in the middle of a step of its work, and continues it when C leads. Then B's write reaches
// the ledger with the old token.
func (s *show) pause() {
	old := s.LastOf("B", stage.Leads)
	s.door.Lock()
	s.Step("B", "a step of", func(ctx context.Context, _ *stage.Process) error {
		select {
		case <-s.door.stands: // B reads the ledger; its write comes next
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	began := time.Now()
	s.Pause("B")
	s.door.Unlock()
	s.Step("B", "silence of", func(ctx context.Context, b *stage.Process) error {
		if answer, err := ask(ctx, b, "GET /healthz", silence); err == nil {
			return fmt.Errorf("it answers %s", answer)
		}
		s.Tell(b, "GET /healthz: no answer")
		return nil
	})
	next := s.TakeOver("C")
	s.After("B was stopped", began, next)
	s.Wrote(next) // by now C has claimed the ledger, which refuses older tokens from then on
	s.WakeUp("B", old)
	if !s.NoFence {
		refused := s.Await("B", stage.IsRefused)
		s.Step("B", "leadership of", func(context.Context, *stage.Process) error {
			if refused.More["leadership"] == nil {
				return errors.New("it was refused, though its leadership has not ended")
			}
			return nil
		})
	}
	s.Await("B", stage.HasLost)
}
