//go:build unix

package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// await waits for an event of a process in this scene.
func (s *stage) await(ctx context.Context, id, what string) (event, error) {
	e, err := s.record.await(ctx, s.scene, func(e event) bool { return e.is(id, what) })
	if err != nil {
		err = fmt.Errorf("wait for %q of %s: %w", what, id, err)
	}
	return e, err
}

// lastOf is the last event of its kind, of whichever scene.
func (s *stage) lastOf(ctx context.Context, id, what string) (event, error) {
	for _, e := range slices.Backward(s.record.all()) {
		if e.is(id, what) {
			return e, nil
		}
	}
	return s.await(ctx, id, what)
}

// takeOver waits until somebody leads: it must be the one who is next.
func (s *stage) takeOver(ctx context.Context, id, meanwhile string) (event, error) {
	hide := s.tl.Waiting(meanwhile)
	defer hide()
	e, err := s.record.await(ctx, s.scene, func(e event) bool { return e.what == leads })
	if err != nil {
		return e, fmt.Errorf("wait for %s to lead: %w", id, err)
	}
	if e.node.id != id {
		return e, fmt.Errorf("%s leads instead of %s", e.node.id, id)
	}
	return e, nil
}

// after tells how long it took until the next one led.
func (s *stage) after(what string, when time.Time, next event) {
	took := next.when.Sub(when).Round(time.Millisecond)
	s.tl.Add(timeline.Main, next.token, timeline.Good, fmt.Sprintf("%s leads %v after %s", next.node.id, took, what))
}

// settle waits for the end of a scene: the leader has written, all are in the queue and know who leads.
func (s *stage) settle(ctx context.Context, leader string, queue ...string) error {
	e, err := s.lastOf(ctx, leader, leads)
	if err != nil {
		return err
	}
	if err := s.wrote(ctx, e); err != nil {
		return err
	}
	if err := s.queued(ctx, queue...); err != nil {
		return err
	}
	return s.agree(ctx, leader)
}

// wrote waits until a leader has written.
func (s *stage) wrote(ctx context.Context, leader event) error {
	_, err := s.record.await(ctx, s.scene, func(e event) bool { return e.what == accepts && e.token == leader.token })
	if err != nil {
		err = fmt.Errorf("wait for %s to write: %w", leader.node.id, err)
	}
	return err
}

// endOf waits for the end of a process that was told to stop.
func (s *stage) endOf(ctx context.Context, p *process) error {
	select {
	case <-p.ended:
	case <-time.After(patience):
		return fmt.Errorf("%s has not ended in %v", p.id, patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.kill() // which has nothing more to do than to wait for what it has logged
	delete(s.nodes, p.id)
	if !p.status.Exited() || p.status.ExitStatus() != 0 {
		return fmt.Errorf("%s was told to stop: %s", p.id, p.ending())
	}
	return nil
}
