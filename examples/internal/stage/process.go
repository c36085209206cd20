//go:build unix

package stage

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Process is a process that the demo has started, as an operator sees it.
type Process struct {
	ID  string
	URL string // where it serves HTTP, if it does

	actor  actor
	proc   *os.Process
	stdin  *os.File
	ended  chan struct{}      // closed when the process has ended
	status syscall.WaitStatus // set before ended is closed
	err    error              // why status is not known; set before ended is closed
	parts  sync.WaitGroup     // read and attend
}

// Start starts this program with other arguments, and waits until the process logs the message first.
func (s *Stage) Start(id, first string, args ...string) (e Event) {
	s.do("start "+id, func() error {
		from := len(s.record.all())
		p, err := s.launch(id, args)
		if err != nil {
			return err
		}
		e, err = s.record.await(s.Context, from, func(e Event) bool { return e.Node == p && (e.What == first || e.What == HasEnded) })
		if err == nil && e.What != first {
			err = errors.New("it ended at once")
		}
		return err
	})
	return e
}

func (s *Stage) launch(id string, args []string) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stderr, write, errErr := os.Pipe()
	read, stdin, errIn := os.Pipe()
	if err := errors.Join(errErr, errIn); err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, args...) //nolint:noctx // a scene or close ends it
	cmd.Stdin, cmd.Stderr, cmd.SysProcAttr = read, write, attributes()
	if err := errors.Join(cmd.Start(), read.Close(), write.Close()); err != nil {
		return nil, errors.Join(err, stderr.Close(), stdin.Close())
	}
	p := &Process{
		ID: id, proc: cmd.Process, stdin: stdin, ended: make(chan struct{}),
		actor: actor{fmt.Sprintf("%s %d", id, cmd.Process.Pid), processColours[id]},
	}
	s.Nodes[id] = p
	p.parts.Go(func() { s.read(p, stderr) })
	p.parts.Go(func() { s.attend(p) })
	return p, nil
}

// read records and prints the log of a process until it ends.
func (s *Stage) read(p *Process, stderr io.ReadCloser) {
	defer func() { _ = stderr.Close() }() // nothing is lost: the log was read to its end
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		e, err := parse(lines.Bytes())
		if err != nil {
			s.now(p.actor, 0, bad, "%s", lines.Text()) // not a line of the log, but of a crash
			continue
		}
		e.Node = p
		s.event(e)
		s.record.add(e)
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

// attend records and prints that a process stops, continues and ends, whoever sends the signals.
func (s *Stage) attend(p *Process) {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.proc.Pid, &status, syscall.WUNTRACED|syscall.WCONTINUED, nil)
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
			close(p.ended)
		}
		s.event(e)
		s.record.add(e)
		if e.What == HasEnded {
			return
		}
	}
}

// kill kills the process, in whatever state it is, and waits until it has ended and its log was read.
func (p *Process) kill() {
	_ = p.proc.Kill() // fails if the process has ended
	p.parts.Wait()
	_ = p.stdin.Close()
	_ = p.proc.Release()
}

// ending says how the process has ended.
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
