//go:build !unix

package main

import "errors"

func demo() error {
	return errors.New("this system has no SIGSTOP to pause a process with: run the demo on Linux, macOS or WSL; -join works here")
}
