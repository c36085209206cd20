//go:build unix

package etcdproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/integration/child"
)

// Process is one etcd server in a separate process. It is not safe for concurrent use.
type Process struct {
	order order
	run   *child.Process // nil while it does not run
	lines chan string    // receives the lines that the process prints: one when it is ready, then one for each command
	ended chan struct{}  // closed when the process has closed its standard output
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (p *Process) Endpoint() string { return p.order.Member.ClientAddr }

func (p *Process) name() string { return p.order.Member.Name }

// Restart starts the server with the same data and address, and waits until it serves clients. It kills a running
// server first. On an error nothing is left running.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	if err := p.launch(); err != nil {
		return err
	}
	return p.awaitReady(ctx)
}

// Reset restarts the server with other settings.
func (p *Process) Reset(ctx context.Context, s Settings) error {
	p.order.Settings = s
	return p.Restart(ctx)
}

// launch starts the process without waiting until it is ready.
func (p *Process) launch() error {
	run, err := child.Start(processEnv, p.order)
	if err != nil {
		return fmt.Errorf("etcdproc: start server %s: %w", p.name(), err)
	}
	lines, ended := make(chan string, 1), make(chan struct{})
	p.run, p.lines, p.ended = run, lines, ended
	go func() {
		defer close(ended)
		defer close(lines) // a reader then gets "", which is no line that it expects
		out := bufio.NewScanner(run.Stdout)
		for out.Scan() {
			select {
			case lines <- out.Text():
			default: // no command waits for an answer
			}
		}
	}()
	return nil
}

// awaitReady returns when the server serves clients. On an error it has killed the server.
func (p *Process) awaitReady(ctx context.Context) error {
	var err error
	select {
	case line := <-p.lines:
		if line == readyLine {
			return nil
		}
		err = fmt.Errorf("etcdproc: the process of server %s printed %q; does main or TestMain call Serve first?", p.name(), line)
	case <-ctx.Done():
		err = fmt.Errorf("etcdproc: start server %s: %w", p.name(), context.Cause(ctx))
	}
	return errors.Join(err, p.Kill())
}

// Kill ends the process with SIGKILL and waits until it is gone. What the server has confirmed is on the disk. On a
// process that does not run it does nothing.
func (p *Process) Kill() error {
	if p.run == nil {
		return nil
	}
	if err := p.run.Kill(); err != nil {
		return fmt.Errorf("etcdproc: kill server %s: %w", p.name(), err)
	}
	<-p.ended
	_ = p.run.Wait() // the error is the signal
	p.run = nil
	return nil
}

// Pause stops the process with SIGSTOP and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause() error {
	return p.do(func(run *child.Process) error { return run.Pause(context.Background()) })
}

// Resume continues a paused process.
func (p *Process) Resume() error { return p.do((*child.Process).Resume) }

func (p *Process) do(what func(*child.Process) error) error {
	if p.run == nil {
		return fmt.Errorf("etcdproc: server %s does not run", p.name())
	}
	if err := what(p.run); err != nil {
		return fmt.Errorf("etcdproc: server %s: %w", p.name(), err)
	}
	return nil
}
