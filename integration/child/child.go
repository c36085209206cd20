// Package child runs this program once more, in a process that plays a part of a test. The test can pause and kill that
// process.
//
// An environment variable names the part and holds its orders. A part that ends when its standard input is closed ends
// with its parent, however the parent ends.
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
	Stdout io.Reader // read it to its end before Wait

	part string
	cmd  *exec.Cmd

	wait sync.Once
}

// Start starts this program once more to play a part. The part is the name of an environment variable, which gets the
// order as JSON.
func Start(part string, order any) (*Process, error) {
	if _, plays := os.LookupEnv(part); plays {
		// Otherwise each process would start another one, without end.
		return nil, fmt.Errorf("child: this process was started to be %s; does main or TestMain call Play first?", part)
	}
	text, errText := json.Marshal(order)
	program, errProgram := os.Executable()
	// If the binary of a test does not call Play, it runs no tests and ends.
	cmd := exec.Command(program, "-test.run=^$") //nolint:noctx // the process ends with its standard input
	cmd.Env = append(os.Environ(), part+"="+string(text))
	cmd.Stderr = os.Stderr
	// With a process group of its own, a paused process does not outlive its parent: the kernel wakes and ends an orphaned
	// group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	err := errors.Join(errText, errProgram, errIn, errOut)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("child: %w", err)
	}
	return &Process{Stdin: stdin, Stdout: stdout, part: part, cmd: cmd}, nil
}

// Signal sends a signal. It fails with [os.ErrProcessDone] after [Process.Wait].
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("child: signal %s: %w", p.part, err)
	}
	return nil
}

// Pause stops the process with SIGSTOP and returns when none of its threads runs any more, which takes until one of
// them has received the signal. Its connections stay open and silent.
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
		case <-time.After(time.Millisecond): // poll: the only event is SIGCHLD, which is for this whole process
		case <-ctx.Done():
			return fmt.Errorf("child: pause %s: %w", p.part, context.Cause(ctx))
		}
	}
}

// stopped asks the kernel whether all threads have stopped. The kernel reports each stop only once.
func (p *Process) stopped() (bool, error) {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	switch {
	case errors.Is(err, syscall.EINTR), err == nil && pid == 0:
		return false, nil
	case errors.Is(err, syscall.ECHILD): // Wait has reaped it
		return false, fmt.Errorf("child: pause %s: %w", p.part, os.ErrProcessDone)
	case err != nil:
		return false, fmt.Errorf("child: pause %s: %w", p.part, err)
	case !status.Stopped(): // it has ended, and this call has reaped it, so Wait has no status to report
		return false, fmt.Errorf("child: pause %s: %w", p.part, os.ErrProcessDone)
	default:
		return true, nil
	}
}

// Resume continues a paused process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process with SIGKILL, paused or not. It succeeds if the process has already ended.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Wait returns when the process is gone. The first call returns how the process ended, further calls nil. Read Stdout
// to its end first.
func (p *Process) Wait() (err error) {
	p.wait.Do(func() {
		_ = p.Stdin.Close()
		err = p.cmd.Wait()
	})
	return err
}

// Play plays a part and exits if this process was started for that part by [Start]; otherwise it does nothing. It
// prints an error and exits with status 1. Call it first in main or TestMain.
func Play[T any](part string, play func(order T) error) {
	text, ok := os.LookupEnv(part)
	if !ok {
		return
	}
	var order T
	err := json.Unmarshal([]byte(text), &order)
	if err == nil {
		err = play(order)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", part, err)
		os.Exit(1)
	}
	os.Exit(0)
}
