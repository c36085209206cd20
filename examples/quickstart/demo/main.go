//go:build unix

// Demo is the quickstart. It starts etcd in a temporary folder, serves the ledger, starts itself twice, as A and B, and prints
// what happens as it happens:
//
//   - A gets the lock and writes. B waits for the lock.
//   - A reads the ledger, looks at its lock, which is fine, and is stopped by SIGSTOP right before it writes.
//   - A's lease runs out, B gets the lock, with a larger token, and writes.
//   - A goes on where it was and sends its write. The ledger has seen B's token and refuses A's.
//
// No check on A's side could have helped: a pause can always come between the check and the write. The ledger
// needs no clock to know better, only the token that goes with every write.
//
// Nothing sleeps for luck: each step waits for the one before it to be seen. The exit status is 0 only if the late write has
// reached the ledger and was refused there, and the ledger is intact. It is 1 in every other case.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

// limit bounds the run, which takes about three seconds.
const limit = 25 * time.Second

func main() {
	noFence := flag.Bool("no-fence", false, "switch the check at the ledger off, to see what it prevents")
	var w worker
	flag.StringVar(&w.name, "worker", "", "be A or B, and not the demo")
	flag.StringVar(&w.endpoint, "etcd", "", "with -worker: etcd's address")
	flag.StringVar(&w.ledger, "ledger", "", "with -worker: the ledger's URL")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the clean-up
	if w.name != "" {
		os.Exit(w.run(ctx))
	}
	err := stage.Run(ctx, stage.Options{Name: "quickstart", NoFence: *noFence, Limit: limit}, os.Stdout, play)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1) //nolint:gocritic // all has been cleaned up
	}
	fmt.Println("\nThe late write was refused. The lock alone could not have prevented it: see it with -no-fence.")
}
