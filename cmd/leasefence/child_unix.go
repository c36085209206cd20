//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// start runs the command in a process group of its own, so that a signal also reaches the command's children.
func start(path string, args []string, h hold) (*exec.Cmd, error) {
	cmd := &exec.Cmd{
		Path: path, Args: args,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env:         h.environment(),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if ownsTerminal() {
		// A background group would be stopped when it reads from the terminal. In the foreground it gets Ctrl-C
		// directly.
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, stdin
		// In the background, leasefence must ignore SIGTTOU, to write to the terminal and to take it back. The command
		// must not inherit that: it starts with default actions for signals that are caught.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTTOU)
		defer signal.Ignore(syscall.SIGTTOU)
	}
	endWithParent(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// signalGroup signals the command's group. It ignores errors: the group may have ended. It also continues processes
// that are stopped, as by Ctrl-Z: they would not handle the signal.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, sig)
	if sig != syscall.SIGKILL { // which also kills a stopped process
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT)
	}
}

// outcome is the exit code of a command that has ended, nil for 0.
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

// ownsTerminal reports whether standard input is a terminal with leasefence in the foreground.
func ownsTerminal() bool {
	group, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// takeTerminalBack puts leasefence's group in the foreground again, if start took it away.
func takeTerminalBack(cmd *exec.Cmd) {
	if cmd.SysProcAttr.Foreground {
		_ = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, unix.Getpgrp())
	}
}
