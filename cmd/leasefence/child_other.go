//go:build !unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// start runs nothing: without process groups and signals a command could not be ended in time.
func start(string, []string, hold) (*exec.Cmd, error) {
	return nil, errors.New("commands are run on Unix only")
}

func signalGroup(*exec.Cmd, syscall.Signal) {}

func outcome(*os.ProcessState) error { return nil }

func takeTerminalBack(*exec.Cmd) {}
