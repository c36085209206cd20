//go:build unix

package child

import (
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
)

// Process is a process that plays a part. Its methods are safe for concurrent use.
type Process struct {
	Stdin  io.WriteCloser
	Stdout io.Reader // to be read to its end before Wait

	part string
	cmd  *exec.Cmd

	mu   sync.Mutex // guards the field below; held while a signal is sent, so that it goes to this process
	gone bool
}

// Start starts a program, or if that is "" this one, to play a part, which is the name of an environment variable.
func Start(program, part string, order any) (*Process, error) {
	if _, plays := os.LookupEnv(part); plays {
		// A process that goes on to start others would do so without end.
		return nil, fmt.Errorf("child: this process was started to be %s; does main or TestMain call Play first?", part)
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, fmt.Errorf("child: %w", err)
	}
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("child: %w", err)
		}
	}
	// Should Play not be called, the binary of a test runs no test and ends.
	cmd := exec.Command(program, "-test.run=^$") //nolint:noctx // it ends with its standard input
	cmd.Env = append(os.Environ(), part+"="+string(text))
	cmd.Stderr = os.Stderr
	// A process group of its own: if the parent dies while the process is paused, the kernel wakes and ends an orphaned group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("child: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("child: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("child: %w", err)
	}
	return &Process{Stdin: stdin, Stdout: stdout, part: part, cmd: cmd}, nil
}

// Signal sends a signal. It is an error if the process has ended and [Process.Wait] knows.
func (p *Process) Signal(sig os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signal(sig)
}

func (p *Process) signal(sig os.Signal) error {
	if p.gone {
		return fmt.Errorf("child: %s: %w", p.part, os.ErrProcessDone)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("child: signal %s: %w", p.part, err)
	}
	return nil
}

// Pause stops the process with SIGSTOP and returns when none of its threads runs any more: until one of them has taken the
// signal, the others do. Its connections stay open and silent.
func (p *Process) Pause(ctx context.Context) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		stopped, err := p.stopped()
		if stopped || err != nil {
			return err
		}
		select {
		case <-time.After(time.Millisecond): // the kernel tells by a signal to all of this process, or if it is asked
		case <-ctx.Done():
			return fmt.Errorf("child: pause %s: %w", p.part, context.Cause(ctx))
		}
	}
}

// stopped asks the kernel, which says so once, when all threads have stopped.
func (p *Process) stopped() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false, fmt.Errorf("child: pause %s: %w", p.part, os.ErrProcessDone)
	}
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	switch {
	case errors.Is(err, syscall.EINTR), err == nil && pid == 0:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("child: pause %s: %w", p.part, err)
	case !status.Stopped(): // and it has been waited for, so that Wait will have nothing to report
		return false, fmt.Errorf("child: pause %s: %w", p.part, os.ErrProcessDone)
	default:
		return true, nil
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process at once, paused or not. It is no error if it has ended.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Wait returns when the process is gone, and says how it ended, the first time. Call it when Stdout was read to its end.
func (p *Process) Wait() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil
	}
	p.gone = true
	_ = p.Stdin.Close()
	return p.cmd.Wait()
}
