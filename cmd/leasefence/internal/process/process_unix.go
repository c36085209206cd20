//go:build unix

package process

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Start runs a command in a process group of its own, so that a signal also reaches the command's children. The command
// inherits standard input, output and error, and has the terminal if leasefence had it. The goroutine of main has to
// call Start: on Linux the command is killed when the thread that started it ends, and that goroutine keeps the main
// thread.
func Start(path string, args, env []string) (cmd *exec.Cmd, err error) {
	cmd = &exec.Cmd{
		Path: path, Args: args,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env:         env,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if ownsTerminal() {
		// A background group would be stopped when it reads from the terminal. In the foreground it gets Ctrl-C
		// directly.
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, stdin
		// In the background, leasefence must ignore SIGTTOU, to write to the terminal and to take it back. The command
		// must not inherit that: it starts with default actions for signals that are caught.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTTOU)
		defer func() {
			signal.Ignore(syscall.SIGTTOU)
			if err != nil {
				TakeTerminalBack(cmd) // the process took the terminal before it failed to execute the program
			}
		}()
	}
	endWithParent(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// SignalGroup signals the command's group. It ignores errors: the group may have ended. It also continues processes
// that are stopped, as by Ctrl-Z: they would not handle the signal.
func SignalGroup(cmd *exec.Cmd, sig os.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal))
	if sig != SIGKILL { // which also kills a stopped process
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT)
	}
}

const stdin = 0

// ownsTerminal reports whether standard input is a terminal with leasefence in the foreground.
func ownsTerminal() bool {
	group, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// TakeTerminalBack puts leasefence's group in the foreground again, if Start took it away.
func TakeTerminalBack(cmd *exec.Cmd) {
	if cmd.SysProcAttr.Foreground {
		_ = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// Hide overwrites a part of an argument in os.Args, which every user of the machine can read.
func Hide(secret string) {
	// On Unix the strings of os.Args share memory with what ps shows.
	bytes := unsafe.Slice(unsafe.StringData(secret), len(secret))
	for i := range bytes {
		bytes[i] = 'x'
	}
}
