//go:build !unix

package process

import (
	"errors"
	"os"
	"os/exec"
)

// Start fails: without process groups and signals leasefence could not end a command in time.
func Start(string, []string, []string) (*exec.Cmd, error) {
	return nil, errors.New("commands are run on Unix only")
}

// SignalGroup is not called: no command was started.
func SignalGroup(*exec.Cmd, os.Signal) {}

// TakeTerminalBack is not called: no command was started.
func TakeTerminalBack(*exec.Cmd) {}

// Hide does nothing: os.Args is a copy here.
func Hide(string) {}
