//go:build unix

package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// Process is one that the demo has started, as its operator sees it.
type Process struct {
	ID    string
	Actor timeline.Actor
	Proc  *os.Process
	URL   string        // of its HTTP, if it has any
	Stdin *os.File      // its standard input
	Ended chan struct{} // closed when it has

	status syscall.WaitStatus // set before Ended is closed, as is err
	err    error              // status is not known
	parts  sync.WaitGroup
}

// Start starts this program with other arguments, and waits for what the process logs first.
func (s *Stage) Start(ctx context.Context, id, first string, args ...string) (Event, error) {
	exe, err := os.Executable()
	if err != nil {
		return Event{}, err
	}
	stderr, write, errErr := os.Pipe()
	read, stdin, errIn := os.Pipe()
	if err := errors.Join(errErr, errIn); err != nil {
		return Event{}, err
	}
	cmd := exec.Command(exe, args...) //nolint:noctx // it ends as the scenes tell
	cmd.Stdin, cmd.Stderr, cmd.SysProcAttr = read, write, attributes()
	if err := errors.Join(cmd.Start(), read.Close(), write.Close()); err != nil {
		return Event{}, errors.Join(fmt.Errorf("start %s: %w", id, err), stderr.Close(), stdin.Close())
	}
	p := &Process{
		ID: id, Proc: cmd.Process, Stdin: stdin, Actor: timeline.Worker(id, cmd.Process.Pid), Ended: make(chan struct{}),
	}
	s.Nodes[id] = p
	from := s.Record.Len()
	p.parts.Go(func() { s.read(p, stderr) })
	p.parts.Go(func() { s.attend(p) })

	e, err := s.Record.Await(ctx, from, func(e Event) bool { return e.Node == p && (e.What == first || e.What == HasEnded) })
	if err != nil {
		return Event{}, fmt.Errorf("wait for %s to start: %w", id, err)
	}
	if e.What != first {
		return Event{}, fmt.Errorf("%s %v at once", id, e.What)
	}
	return e, nil
}

// read takes down and shows what a process logs, until it ends.
func (s *Stage) read(p *Process, stderr io.ReadCloser) {
	defer func() { _ = stderr.Close() }() // nothing is lost: it was read to its end
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		e, err := parse(lines.Bytes())
		if err != nil {
			s.TL.Add(p.Actor, 0, timeline.Bad, lines.Text()) // no line of the log: a crash
			continue
		}
		e.Node = p
		s.show(e)
		s.Record.add(e)
	}
}

// parse reads a line of a log in JSON.
func parse(line []byte) (Event, error) {
	var known struct {
		Time  time.Time
		Msg   string
		Token fence.Token
	}
	var more map[string]any
	if err := errors.Join(json.Unmarshal(line, &known), json.Unmarshal(line, &more)); err != nil {
		return Event{}, err
	}
	return Event{When: known.Time, What: known.Msg, Token: known.Token, More: more}, nil
}

// attend takes down what becomes of a process, whoever sends it a signal, until it has ended.
func (s *Stage) attend(p *Process) {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.Proc.Pid, &status, syscall.WUNTRACED|syscall.WCONTINUED, nil)
		e := Event{When: time.Now(), Node: p}
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err == nil && status.Stopped():
			e.What = HasStopped
		case err == nil && status.Continued():
			e.What = GoesOn
		default:
			e.What, p.status, p.err = HasEnded, status, err
			close(p.Ended)
		}
		s.show(e)
		s.Record.add(e)
		if e.What == HasEnded {
			return
		}
	}
}

// Signal sends a signal, and shows it as a person would have typed it.
func (s *Stage) Signal(p *Process, sig syscall.Signal, name string) error {
	s.TL.Add(timeline.Main, 0, timeline.Plain, fmt.Sprintf("kill -%s %d", name, p.Proc.Pid))
	if err := p.Proc.Signal(sig); err != nil {
		return fmt.Errorf("send SIG%s to %s: %w", name, p.ID, err)
	}
	return nil
}

// Forget waits for what a process that has ended, or is about to, has logged.
func (s *Stage) Forget(p *Process) { p.kill() }

// kill ends the process whatever state it is in, and waits for its end.
func (p *Process) kill() {
	_ = p.Proc.Kill() // the error says that it has ended
	p.parts.Wait()
	_ = p.Stdin.Close()  // nobody reads it any more
	_ = p.Proc.Release() // it has nothing left to fail for
}

// ending is how the process has ended.
func (p *Process) ending() string {
	switch {
	case p.err != nil:
		return p.err.Error()
	case p.status.Signaled():
		return fmt.Sprintf("killed by signal %d", p.status.Signal())
	default:
		return fmt.Sprintf("exit status %d", p.status.ExitStatus())
	}
}
