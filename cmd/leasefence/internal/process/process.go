// Package process has what differs between systems: signals, the process group of a command, the terminal, and the
// arguments that others see.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// The signals that end a command, and the one that may only mean a reload. Package main does not import syscall for them:
// .ci/run compiles what does for other systems, with all its imports.
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

// ReadPassword asks for a password on the terminal. A signal that ends leasefence meanwhile turns the echo on again.
func ReadPassword() (string, error) {
	stdin := int(os.Stdin.Fd())
	before, err := term.GetState(stdin)
	if err != nil {
		return "", errors.New("standard input is no terminal, so nobody can type it: set --password-file or $ETCDCTL_PASSWORD")
	}
	// term.ReadPassword turns the echo off, and nothing but the user's Enter ends it.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		sig := <-signals
		_ = term.Restore(stdin, before)
		fmt.Fprintln(os.Stderr)
		os.Exit(SignalCode(sig))
	}()
	fmt.Fprint(os.Stderr, "Password: ")
	text, err := term.ReadPassword(stdin)
	fmt.Fprintln(os.Stderr)
	return string(text), err
}
