//go:build !unix

// Quickstart needs a system with SIGSTOP.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "quickstart: this system has no SIGSTOP to pause a process with: run it on Linux, macOS or WSL")
	os.Exit(1)
}
