//go:build unix

package etcdproc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Process is one etcd server in a process of its own. It is not safe for concurrent use.
type Process struct {
	order   order
	program string    // "" for this one
	cmd     *exec.Cmd // nil while it does not run
	stdin   io.WriteCloser
	lines   chan string   // that the process prints: the first when it is ready, then one for each command
	ended   chan struct{} // closed when the process has closed its standard output
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
	if _, served := os.LookupEnv(processEnv); served {
		// A server that goes on to start servers would do so without end.
		return errors.New("etcdproc: this process was started to be a server; does main or TestMain call Serve first?")
	}
	text, err := json.Marshal(p.order)
	if err != nil {
		return fmt.Errorf("etcdproc: %w", err)
	}
	exe := p.program
	if exe == "" {
		if exe, err = os.Executable(); err != nil {
			return fmt.Errorf("etcdproc: %w", err)
		}
	}
	// Should Serve not be called, the binary of a test runs no test and ends.
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), processEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	// A process group of its own: if the program dies while the server is stopped by a signal, the kernel wakes and ends an
	// orphaned group. A server that runs notices the end of its standard input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("etcdproc: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("etcdproc: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("etcdproc: %w", err)
	}
	p.cmd, p.stdin = cmd, stdin
	lines, ended := make(chan string, 1), make(chan struct{})
	p.lines, p.ended = lines, ended
	go func() {
		defer close(ended)
		defer close(lines) // what is read then is empty, and so not the expected line
		out := bufio.NewScanner(stdout)
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
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("etcdproc: kill server %s: %w", p.name(), err)
	}
	p.wait()
	return nil
}

// Stop ends the process so that a profile is written, and waits until it is gone. On a process that does not run it does
// nothing.
func (p *Process) Stop() {
	if p.cmd == nil {
		return
	}
	_ = p.stdin.Close()
	p.wait()
}

// wait returns when the process is gone. Its output is read to the end before, as exec asks for.
func (p *Process) wait() {
	<-p.ended
	// Wait reports the signal of Kill as an error.
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
	p.cmd = nil
}

// Pause stops the process with SIGSTOP and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("etcdproc: pause server %s: %w", p.name(), err)
		}
		if !status.Stopped() {
			return fmt.Errorf("etcdproc: pause server %s: its process has ended", p.name())
		}
		return nil
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(sig os.Signal) error {
	if p.cmd == nil {
		return fmt.Errorf("etcdproc: server %s does not run", p.name())
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("etcdproc: signal server %s: %w", p.name(), err)
	}
	return nil
}
