//go:build unix

package stage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// Await waits for an event of a process in this scene.
func (s *Stage) Await(ctx context.Context, id, what string) (Event, error) {
	e, err := s.AwaitMatch(ctx, func(e Event) bool { return e.Is(id, what) })
	if err != nil {
		err = fmt.Errorf("wait for %q of %s: %w", what, id, err)
	}
	return e, err
}

// AwaitMatch waits for an event of this scene that matches.
func (s *Stage) AwaitMatch(ctx context.Context, matches func(Event) bool) (Event, error) {
	return s.Record.Await(ctx, s.scene, matches)
}

// LastOf is the last event of its kind, of whichever scene.
func (s *Stage) LastOf(ctx context.Context, id, what string) (Event, error) {
	for _, e := range slices.Backward(s.Record.All()) {
		if e.Is(id, what) {
			return e, nil
		}
	}
	return s.Await(ctx, id, what)
}

// TakeOver waits until somebody's tenure begins: it must be the one who is next.
func (s *Stage) TakeOver(ctx context.Context, id, meanwhile string) (Event, error) {
	hide := s.TL.Waiting(meanwhile)
	defer hide()
	e, err := s.AwaitMatch(ctx, Event.begins)
	if err != nil {
		return e, fmt.Errorf("wait for %s to take over: %w", id, err)
	}
	if e.Node.ID != id {
		return e, fmt.Errorf("%s takes over instead of %s", e.Node.ID, id)
	}
	return e, nil
}

// After tells how long it took until the next tenure began.
func (s *Stage) After(what string, when time.Time, next Event) {
	took := next.When.Sub(when).Round(time.Millisecond)
	s.TL.Add(timeline.Main, next.Token, timeline.Good, fmt.Sprintf("%s %s %v after %s", next.Node.ID, next.What, took, what))
}

// Wrote waits until the ledger has accepted a write of a tenure.
func (s *Stage) Wrote(ctx context.Context, tenure Event) error {
	_, err := s.AwaitMatch(ctx, func(e Event) bool { return e.What == Accepts && e.Token == tenure.Token })
	if err != nil {
		err = fmt.Errorf("wait for %s to write: %w", tenure.Node.ID, err)
	}
	return err
}

// LateWrite waits until a write with an old token has reached the ledger, accepted or not.
func (s *Stage) LateWrite(ctx context.Context, from int, old Event) error {
	_, err := s.Record.Await(ctx, from, func(e Event) bool { return e.Node == nil && e.Token == old.Token })
	if err != nil {
		err = fmt.Errorf("wait for the late write of %s: %w", old.Node.ID, err)
	}
	return err
}

// EndOf waits for the end of a process that is about to end by itself, with status 0.
func (s *Stage) EndOf(ctx context.Context, p *Process) error {
	select {
	case <-p.Ended:
	case <-time.After(Patience):
		return fmt.Errorf("%s has not ended in %v", p.ID, Patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.kill() // it has ended, and only its log is still read
	delete(s.Nodes, p.ID)
	if !p.status.Exited() || p.status.ExitStatus() != 0 {
		return fmt.Errorf("%s should have ended with status 0: %s", p.ID, p.ending())
	}
	return nil
}

// Until looks again and again until what is wanted is so.
func (s *Stage) Until(ctx context.Context, what string, look func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("not seen in %v: %s", Patience, what))
	defer cancel()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		if ok, err := look(ctx); ok {
			return nil
		} else if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
