//go:build unix

package demo

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

// process is one of the service, as its operator sees it.
type process struct {
	id    string
	actor timeline.Actor
	proc  *os.Process
	url   string // of its HTTP

	status syscall.WaitStatus // set before ended is closed, as is err
	err    error              // status is not known
	ended  chan struct{}
	parts  sync.WaitGroup
}

// start starts a process and waits until it campaigns.
func (s *stage) start(ctx context.Context, id string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	stderr, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, "-join", "-json", "-id", id, "-name", electionName, "-http", "127.0.0.1:0", //nolint:noctx // it ends as the scenes tell
		"-endpoints", s.server.Endpoint(), "-ledger", s.url, "-ttl", ttl.String())
	cmd.Stderr, cmd.SysProcAttr = write, attributes()
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", id, err), stderr.Close())
	}
	p := &process{id: id, proc: cmd.Process, actor: timeline.Worker(id, cmd.Process.Pid), ended: make(chan struct{})}
	s.nodes[id] = p
	from := s.record.len()
	p.parts.Go(func() { s.read(p, stderr) })
	p.parts.Go(func() { s.attend(p) })

	e, err := s.record.await(ctx, from, func(e event) bool {
		return e.node == p && (e.what == campaigns || e.what == hasEnded)
	})
	if err != nil {
		return fmt.Errorf("wait for %s to start: %w", id, err)
	}
	address, ok := e.more["http"].(string)
	if !ok {
		return fmt.Errorf("%s %v at once", id, e.what)
	}
	p.url = "http://" + address
	return nil
}

// read takes down and shows what a process logs, until it ends.
func (s *stage) read(p *process, stderr io.ReadCloser) {
	defer func() { _ = stderr.Close() }() // nothing is lost: it was read to its end
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		e, err := parse(lines.Bytes())
		if err != nil {
			s.tl.Add(p.actor, 0, timeline.Bad, lines.Text()) // no line of the log: a crash
			continue
		}
		e.node = p
		s.show(e)
		s.record.add(e)
	}
}

// parse reads a line of a log in JSON.
func parse(line []byte) (event, error) {
	var known struct {
		Time  time.Time
		Msg   string
		Token fence.Token
	}
	var more map[string]any
	if err := errors.Join(json.Unmarshal(line, &known), json.Unmarshal(line, &more)); err != nil {
		return event{}, err
	}
	return event{when: known.Time, what: known.Msg, token: known.Token, more: more}, nil
}

// attend takes down what becomes of a process, whoever sends it a signal, until it has ended.
func (s *stage) attend(p *process) {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.proc.Pid, &status, syscall.WUNTRACED|syscall.WCONTINUED, nil)
		e := event{when: time.Now(), node: p}
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err == nil && status.Stopped():
			e.what = hasStopped
		case err == nil && status.Continued():
			e.what = goesOn
		default:
			e.what, p.status, p.err = hasEnded, status, err
			close(p.ended)
		}
		s.show(e)
		s.record.add(e)
		if e.what == hasEnded {
			return
		}
	}
}

// signal sends a signal, and shows it as a person would have typed it.
func (s *stage) signal(p *process, sig syscall.Signal, name string) error {
	s.tl.Add(timeline.Main, 0, timeline.Plain, fmt.Sprintf("kill -%s %d", name, p.proc.Pid))
	if err := p.proc.Signal(sig); err != nil {
		return fmt.Errorf("send SIG%s to %s: %w", name, p.id, err)
	}
	return nil
}

// kill ends the process whatever state it is in, and waits for its end.
func (p *process) kill() {
	_ = p.proc.Kill() // the error says that it has ended
	p.parts.Wait()
	_ = p.proc.Release() // it has nothing left to fail for
}

// ending is how the process has ended.
func (p *process) ending() string {
	switch {
	case p.err != nil:
		return p.err.Error()
	case p.status.Signaled():
		return fmt.Sprintf("killed by signal %d", p.status.Signal())
	default:
		return fmt.Sprintf("exit status %d", p.status.ExitStatus())
	}
}
