//go:build unix

// Quickstart shows what a fencing token is for. Two processes use one lock to write to one ledger. The holder of the
// lock is paused, and continues when the other process holds the lock.
//
//	go -C examples run ./quickstart            # the late write is refused: exit status 0
//	go -C examples run ./quickstart -no-fence  # nobody checks the token: the ledger is corrupted, exit status 1
//
// This file only prints a message while Go compiles the demo, which contains etcd. See demo/worker.go for what a
// program of your own would do, and examples/internal/ledger for what its resource has to do.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

const demo = "github.com/leasefence/leasefence/examples/quickstart/demo"

func main() {
	fmt.Println("Go compiles the demo and an etcd server: one or two minutes the first time, seconds after that.")
	path, err := exec.LookPath("go")
	if err == nil {
		err = syscall.Exec(path, append([]string{"go", "run", demo}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "quickstart:", err)
	os.Exit(1)
}
