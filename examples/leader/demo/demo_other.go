//go:build !unix

// Package demo needs a system with SIGSTOP.
package demo

import (
	"context"
	"errors"
	"os"
)

// Run returns an error.
func Run(context.Context, bool, *os.File) error {
	return errors.New("this system has no SIGSTOP to pause a process with: run the demo on Linux, macOS or WSL; -join works here")
}
