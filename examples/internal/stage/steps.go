//go:build unix

package stage

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// The steps of a play. After a step has failed, the later ones do nothing, and Run returns the error: so a play needs
// no error handling.

// do is one step.
func (s *Stage) do(what string, step func() error) {
	if s.err != nil {
		return
	}
	if err := step(); err != nil {
		s.err = fmt.Errorf("%s: %w", what, err)
	}
}

// Begin begins a scene.
func (s *Stage) Begin(title string) {
	s.do(title, func() error {
		s.title, s.scene = title, len(s.record.all())
		s.note(plain, "\n%s", s.paint(bold, title))
		return nil
	})
}

// Step does something with the process id.
func (s *Stage) Step(id, what string, do func(context.Context, *Process) error) {
	s.do(what+" "+id, func() error { return do(s.Context, s.Nodes[id]) })
}

// Tell prints a line about a process.
func (s *Stage) Tell(p *Process, what string) { s.now(p.actor, 0, plain, "%s", what) }

// Await waits for an event of a process in this scene.
func (s *Stage) Await(id, what string) Event {
	return s.AwaitSince(s.scene, what+" of "+id, func(e Event) bool { return e.Is(id, what) })
}

// AwaitSince waits for an event that matches, from a place in the record on; 0 is its beginning.
func (s *Stage) AwaitSince(from int, what string, matches func(Event) bool) (e Event) {
	s.do("wait for "+what, func() (err error) {
		e, err = s.record.await(s.Context, from, matches)
		return err
	})
	return e
}

// LastOf returns the latest such event of a process, of any scene, and waits if there is none yet.
func (s *Stage) LastOf(id, what string) Event {
	for _, e := range slices.Backward(s.record.all()) {
		if e.Is(id, what) {
			return e
		}
	}
	return s.Await(id, what)
}

// TakeOver waits until a tenure begins in this scene. It has to be that of the process id.
func (s *Stage) TakeOver(id string) Event {
	e := s.AwaitSince(s.scene, id+" to take over", Event.begins)
	s.do("wait for "+id+" to take over", func() error {
		if e.Node.ID != id {
			return fmt.Errorf("%s takes over instead", e.Node.ID)
		}
		return nil
	})
	return e
}

// After prints how long it took until the next tenure began.
func (s *Stage) After(what string, when time.Time, next Event) {
	s.do("print", func() error {
		took := next.When.Sub(when).Round(time.Millisecond)
		s.now(inMain, next.Token, good, "%s %s %v after %s", next.Node.ID, next.What, took, what)
		return nil
	})
}

// Wrote waits until the ledger has accepted a write of a tenure.
func (s *Stage) Wrote(tenure Event) {
	s.AwaitSince(s.scene, "a write", func(e Event) bool { return e.What == Accepts && e.Token == tenure.Token })
}

// Signal sends a process a signal, and prints the command that would do it.
func (s *Stage) Signal(id string, sig syscall.Signal, name string) {
	s.Step(id, "signal", func(_ context.Context, p *Process) error {
		s.now(inMain, 0, plain, "kill -%s %d", name, p.proc.Pid)
		return p.proc.Signal(sig)
	})
}

// Pause stops a process, and waits until it is stopped.
func (s *Stage) Pause(id string) {
	s.Signal(id, syscall.SIGSTOP, "STOP")
	s.Await(id, HasStopped)
}

// WakeUp continues a process, and waits until a write of its old tenure has reached the ledger, accepted or not.
func (s *Stage) WakeUp(id string, old Event) {
	from := len(s.record.all())
	s.Signal(id, syscall.SIGCONT, "CONT")
	s.AwaitSince(from, "the late write", func(e Event) bool { return e.Node == nil && e.Token == old.Token })
}

// Write writes a line to the standard input of a process.
func (s *Stage) Write(id, line string) {
	s.Step(id, "write to", func(_ context.Context, p *Process) error {
		_, err := fmt.Fprintln(p.stdin, line)
		return err
	})
}

// Forget waits until a process that was killed has ended and its log was read.
func (s *Stage) Forget(id string) {
	s.Step(id, "forget", func(_ context.Context, p *Process) error {
		p.kill()
		return nil
	})
}

// EndOf waits until a process has ended by itself, with status 0.
func (s *Stage) EndOf(id string) {
	s.Step(id, "end of", func(ctx context.Context, p *Process) error {
		select {
		case <-p.ended:
		case <-time.After(Patience):
			return fmt.Errorf("not in %v", Patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.kill() // it has ended: this waits until its log was read
		delete(s.Nodes, id)
		if !p.status.Exited() || p.status.ExitStatus() != 0 {
			return fmt.Errorf("%s, want status 0", p.ending())
		}
		return nil
	})
}

// Until looks repeatedly until look returns true.
func (s *Stage) Until(what string, look func(context.Context) (bool, error)) {
	s.do(what, func() error {
		ctx, cancel := context.WithTimeoutCause(s.Context, Patience, fmt.Errorf("not seen in %v", Patience))
		defer cancel()
		tick := time.NewTicker(glance)
		defer tick.Stop()
		for {
			if ok, err := look(ctx); ok {
				return nil
			} else if err != nil && ctx.Err() == nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}
