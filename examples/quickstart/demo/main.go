//go:build unix

// Demo shows what a fencing token is for. It starts etcd, a ledger, and itself twice, as A and B. Both want one
// lock to write to the ledger:
//
//   - A gets the lock and writes. B waits for the lock.
//   - A reads the ledger, checks that it still holds the lock, and is stopped by SIGSTOP right before it writes.
//   - A's lease expires. B gets the lock, with a larger token, and writes.
//   - A continues and sends its write. The ledger has seen B's token and refuses A's.
//
// No check in A could have helped: a pause can always come between the check and the write. The ledger needs no clock
// to refuse the write, only the token that comes with every write.
//
// Each step waits until it has seen the step before, so nothing depends on timing. See worker.go for what a program of
// your own would do, and examples/internal/ledger for what its resource has to do.
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

func main() {
	noFence := flag.Bool("no-fence", false, "turn off the check of tokens at the ledger, to see what it prevents")
	var w worker
	flag.StringVar(&w.name, "worker", "", "run the worker A or B instead of the demo")
	flag.StringVar(&w.endpoint, "etcd", "", "with -worker: etcd's address")
	flag.StringVar(&w.ledger, "ledger", "", "with -worker: the ledger's URL")
	flag.Parse()
	if w.name != "" {
		w.run()
		return
	}
	late := "REFUSES"
	if *noFence {
		late = "ACCEPTS"
	}
	if err := stage.Run(os.Stdout, *noFence, func(s *stage.Stage) { play(s, late) }); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
	fmt.Println("\nThe late write was refused. The lock alone could not have prevented it: see it with -no-fence.")
}

func play(s *stage.Stage, late string) {
	const write = "" // the line that lets a process write; a stopped process reads it when it continues
	start := func(id string) { s.Start(id, "-worker", id, "-etcd", s.Etcd, "-ledger", s.Ledger) }

	s.Begin("A gets the lock, B waits; A writes, and is paused right before it writes again")
	start("A")
	s.Await("A", "has the lock")
	start("B")
	s.Await("A", "goes to write.*#1 ")
	s.Write("A", write)
	s.Await("A", "goes to write.*#2 ")
	s.Pause("A")
	s.Write("A", write) // from now on only the pause keeps A from its write

	s.Begin("B takes over when A's lease has expired")
	s.Await("B", "goes to write.*#2 ")
	s.Write("B", write)
	s.Await("B", "goes to write.*#3 ")

	s.Begin("A continues and sends its write; B still holds the lock")
	s.Signal("A", syscall.SIGCONT, "CONT")
	s.Await("ledger", late+" A's #2 ")
	s.Await("A", "lock is lost")
	s.Await("A", "has ended: exit status 0")

	s.Begin("B goes on, and releases the lock")
	s.Write("B", write)
	s.Await("B", "unlocks")
	s.Await("B", "has ended: exit status 0")
}
