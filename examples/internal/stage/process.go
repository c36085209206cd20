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

// Process is one that the demo has started, as its operator sees it.
type Process struct {
	ID  string
	URL string // of its HTTP, if it has any

	actor  actor
	proc   *os.Process
	stdin  *os.File
	ended  chan struct{}      // closed when it has
	status syscall.WaitStatus // set before ended is closed, as is err
	err    error              // status is not known
	parts  sync.WaitGroup
}

// Start starts this program with other arguments, and waits for what the process logs first.
func (s *Stage) Start(id, first string, args ...string) (e Event) {
	s.do("start "+id, func() error {
		from := len(s.record.all())
		p, err := s.launch(id, args)
		if err != nil {
			return err
		}
		e, err = s.record.await(s.Context, from, func(e Event) bool { return e.Node == p && (e.What == first || e.What == HasEnded) })
		if err == nil && e.What != first {
			err = errors.New("it has ended at once")
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
	cmd := exec.Command(exe, args...) //nolint:noctx // it ends as the scenes tell
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

// read takes down and shows what a process logs, until it ends.
func (s *Stage) read(p *Process, stderr io.ReadCloser) {
	defer func() { _ = stderr.Close() }() // nothing is lost: it was read to its end
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		e, err := parse(lines.Bytes())
		if err != nil {
			s.now(p.actor, 0, bad, "%s", lines.Text()) // no line of the log: a crash
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

// attend takes down what becomes of a process, whoever sends it a signal, until it has ended.
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

// kill ends the process whatever state it is in, and waits for its end.
func (p *Process) kill() {
	_ = p.proc.Kill() // the error says that it has ended
	p.parts.Wait()
	_ = p.stdin.Close()  // nobody reads it any more
	_ = p.proc.Release() // it has nothing left to fail for
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
