//go:build unix

// Demo is the quickstart. It starts etcd in a temporary folder, serves the ledger, starts itself twice, as A and B, and
// prints events as they happen:
//
//   - A gets the lock and writes. B waits for the lock.
//   - A reads the ledger, checks that it still holds the lock, and is stopped by SIGSTOP right before it writes.
//   - A's lease expires. B gets the lock, with a larger token, and writes.
//   - A continues and sends its write. The ledger has seen B's token and refuses A's.
//
// No check in A could have helped: a pause can always come between the check and the write. The ledger needs no clock
// to refuse the write, only the token that comes with every write.
//
// Each step waits until it has seen the step before, so nothing depends on timing. The exit status is 0 only if the
// late write has reached the ledger and was refused, and the ledger is intact. Otherwise it is 1.
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
	noFence := flag.Bool("no-fence", false, "turn off the check of tokens at the ledger, to see what it prevents")
	var w worker
	flag.StringVar(&w.name, "worker", "", "run the worker A or B instead of the demo")
	flag.StringVar(&w.endpoint, "etcd", "", "with -worker: etcd's address")
	flag.StringVar(&w.ledger, "ledger", "", "with -worker: the ledger's URL")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program without clean-up
	if w.name != "" {
		os.Exit(w.run(ctx))
	}
	err := stage.Run(ctx, stage.Options{Name: "quickstart", NoFence: *noFence, Limit: limit}, os.Stdout, play)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1) //nolint:gocritic // everything has been cleaned up
	}
	fmt.Println("\nThe late write was refused. The lock alone could not have prevented it: see it with -no-fence.")
}
