//go:build unix

package etcdproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/leasefence/leasefence/integration/child"
)

// Process is one etcd server in a process of its own. It is not safe for concurrent use.
type Process struct {
	order   order
	program string         // "" for this one
	run     *child.Process // nil while it does not run
	lines   chan string    // that the process prints: the first when it is ready, then one for each command
	ended   chan struct{}  // closed when the process has closed its standard output
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (p *Process) Endpoint() string { return p.order.Member.ClientAddr }

func (p *Process) name() string { return p.order.Member.Name }

// Dir returns the folder of the server's data.
func (p *Process) Dir() string { return p.order.Member.Dir }

// Ended returns a channel that is closed when the present run of the server ends, for whatever reason.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Restart starts the server, on the data and at the address it had before, and waits until it serves clients. A running
// one is killed first. On an error nothing is left running.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	if err := p.launch(); err != nil {
		return err
	}
	return p.awaitReady(ctx)
}

// Reset starts the server as Restart does, with other settings.
func (p *Process) Reset(ctx context.Context, s Settings) error {
	p.order.Settings = s
	return p.Restart(ctx)
}

// launch starts the process without waiting until it is ready.
func (p *Process) launch() error {
	run, err := child.Start(p.program, processEnv, p.order)
	if err != nil {
		return fmt.Errorf("etcdproc: start server %s: %w", p.name(), err)
	}
	lines, ended := make(chan string, 1), make(chan struct{})
	p.run, p.lines, p.ended = run, lines, ended
	go func() {
		defer close(ended)
		defer close(lines) // what is read then is empty, and so not the expected line
		out := bufio.NewScanner(run.Stdout)
		for out.Scan() {
			select {
			case lines <- out.Text():
			default: // nobody has asked
			}
		}
	}()
	return nil
}

// awaitReady returns when the server serves clients. On an error it is gone.
func (p *Process) awaitReady(ctx context.Context) error {
	var err error
	select {
	case line := <-p.lines:
		switch line {
		case readyLine:
			return nil
		case takenLine:
			err = fmt.Errorf("etcdproc: start server %s: %w", p.name(), syscall.EADDRINUSE)
		default:
			err = fmt.Errorf("etcdproc: the process of server %s printed %q; does main or TestMain call Serve first?",
				p.name(), line)
		}
	case <-ctx.Done():
		err = fmt.Errorf("etcdproc: start server %s: %w", p.name(), context.Cause(ctx))
	}
	return errors.Join(err, p.Kill())
}

// Kill ends the process at once, as SIGKILL does, and waits until it is gone. What the server has confirmed is on the
// disk. On a process that does not run it does nothing.
func (p *Process) Kill() error {
	if p.run == nil {
		return nil
	}
	if err := p.run.Kill(); err != nil {
		return fmt.Errorf("etcdproc: kill server %s: %w", p.name(), err)
	}
	<-p.ended
	_ = p.run.Wait() // which reports the signal
	p.run = nil
	return nil
}

// Pause stops the process with SIGSTOP and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause() error {
	return p.do(func(run *child.Process) error { return run.Pause(context.Background()) })
}

// Resume lets a paused process go on.
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
