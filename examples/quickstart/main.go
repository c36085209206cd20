//go:build unix

// Quickstart shows what a fencing token is for. Two processes use one lock to write to one ledger; the one that
// holds the lock is paused, and wakes up when the lock is another's.
//
//	go -C examples run ./quickstart            # the late write is refused: exit status 0
//	go -C examples run ./quickstart -no-fence  # nobody looks at the token: the ledger is corrupted, exit status 1
//
// This file only says at once what is going on while Go compiles the rest, with etcd in it. See demo/worker.go for what a
// program of your own would do, and examples/internal/ledger for what the resource behind it has to do.
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
