// Package process has what differs between systems: signals, the process group of a command, the terminal, and the
// arguments that others see.
package process

import (
	"os"
	"os/signal"
	"syscall"
)

// The signals that end a command, and the one that may only mean a reload.
const (
	SIGHUP  = syscall.SIGHUP
	SIGKILL = syscall.SIGKILL
	SIGTERM = syscall.SIGTERM
)

// CatchSignals catches the signals that are passed on to a command, so that they do not end leasefence. A signal that
// is ignored, as SIGHUP is under nohup, stays ignored.
func CatchSignals() <-chan os.Signal {
	// Without this, a message to a closed standard error would end leasefence, and with it the command, by SIGKILL. The
	// signal is caught, not ignored: the command would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals := make(chan os.Signal, 64) // package signal drops a signal if the channel is full
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	return signals
}

// SignalCode is the exit code that stands for a signal, 128 and its number.
func SignalCode(sig os.Signal) int {
	return 128 + int(sig.(syscall.Signal)) // package signal delivers no other type
}

// ExitCode is the exit code of a command that has ended. If a signal has killed it, that is the signal's.
func ExitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return SignalCode(status.Signal())
	}
	return state.ExitCode()
}
