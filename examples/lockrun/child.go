//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasefence/leasefence/lease"
)

// start runs the command in a process group of its own, so that a signal reaches what it has started, too.
func start(path string, args []string, lock *lease.Lock) (*exec.Cmd, error) {
	cmd := &exec.Cmd{
		Path: path, Args: args,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: append(os.Environ(),
			"LEASEFENCE_TOKEN="+lock.Token().String(),
			"LEASEFENCE_LOCK="+lock.Name(),
			"LEASEFENCE_KEY="+lock.Key(),
		),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if ownsTerminal() {
		// Or the command would be stopped when it reads from the terminal. Ctrl-C goes to it directly then.
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, stdin
	}
	endWithParent(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// supervise passes signals on to the command until it has ended, and ends it if the lock is lost.
func supervise(cmd *exec.Cmd, lock *lease.Lock, grace time.Duration, signals <-chan os.Signal) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the outcome is in ProcessState
	}()
	lost := lock.Context().Done()
	var kill <-chan time.Time
	for running := true; running; {
		select {
		case sig := <-signals:
			signalGroup(cmd, sig.(syscall.Signal))
		case <-lost:
			lost = nil
			if cause := context.Cause(lock.Context()); grace == 0 || !deadlinePassed(cause) {
				signalGroup(cmd, syscall.SIGKILL)
				break
			}
			signalGroup(cmd, syscall.SIGTERM)
			kill = time.After(grace)
		case <-kill:
			signalGroup(cmd, syscall.SIGKILL)
		case <-ended:
			running = false
		}
	}
	takeTerminalBack(cmd)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := lock.Unlock(ctx)
	if errors.Is(err, lease.ErrLost) {
		signalGroup(cmd, syscall.SIGKILL) // what the command has started may have outlived it
		return &exitError{exitLost, err}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lockrun:", err) // the lock was held all the time, and the lease is about to be revoked
	}
	return outcome(cmd.ProcessState)
}

// deadlinePassed reports whether the lock was lost at its local deadline, so that nobody else can have it yet.
func deadlinePassed(cause error) bool {
	lost, ok := errors.AsType[*lease.LostError](cause)
	return ok && lost.Reason == lease.ReasonDeadlinePassed
}

// signalGroup has no error: the group may have ended.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, sig)
}

func outcome(state *os.ProcessState) error {
	switch status, ok := state.Sys().(syscall.WaitStatus); {
	case state.Success():
		return nil
	case ok && status.Signaled():
		return &exitError{code: signalCode(status.Signal())}
	}
	return &exitError{code: state.ExitCode()}
}

const stdin = 0

// ownsTerminal reports whether standard input is a terminal with lockrun in the foreground.
func ownsTerminal() bool {
	group, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// takeTerminalBack makes lockrun's group the one in the foreground again, if the command's was. From the
// background that works only while SIGTTOU is ignored.
func takeTerminalBack(cmd *exec.Cmd) {
	if cmd.SysProcAttr.Foreground {
		signal.Ignore(syscall.SIGTTOU)
		_ = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, unix.Getpgrp())
	}
}
