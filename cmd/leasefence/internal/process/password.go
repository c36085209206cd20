package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// ErrNoTerminal says that nobody can be asked for a password.
var ErrNoTerminal = errors.New("standard input is no terminal")

// ReadPassword asks for a password on the terminal. A signal that ends leasefence meanwhile turns the echo on again.
func ReadPassword() (string, error) {
	stdin := int(os.Stdin.Fd())
	before, err := term.GetState(stdin)
	if err != nil {
		return "", ErrNoTerminal
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
