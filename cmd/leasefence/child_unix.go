//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// start runs the command in a process group of its own, so that a signal reaches what it has started, too.
func start(path string, args []string, h hold) (*exec.Cmd, error) {
	cmd := &exec.Cmd{
		Path: path, Args: args,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env:         h.environment(),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if ownsTerminal() {
		// Or the command would be stopped when it reads from the terminal. Ctrl-C goes to it directly then.
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, stdin
	}
	endWithParent(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// signalGroup has no error: the group may have ended. What is stopped, as by Ctrl-Z, goes on: it would not see the signal.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, sig)
	if sig != syscall.SIGKILL { // which what is stopped dies of, too
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT)
	}
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

// ownsTerminal reports whether standard input is a terminal with leasefence in the foreground.
func ownsTerminal() bool {
	group, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// takeTerminalBack makes leasefence's group the one in the foreground again, if the command's was. From the
// background that works only while SIGTTOU is ignored.
func takeTerminalBack(cmd *exec.Cmd) {
	if cmd.SysProcAttr.Foreground {
		signal.Ignore(syscall.SIGTTOU)
		_ = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, unix.Getpgrp())
	}
}
