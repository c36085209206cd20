// Quickstart shows what a fencing token is for. Two processes use one lock to write to one ledger; the one that
// holds the lock is paused, and wakes up when the lock is another's.
//
//	go -C examples run ./quickstart            # the late write is refused: exit status 0
//	go -C examples run ./quickstart -no-fence  # nobody looks at the token: the ledger is corrupted, exit status 1
//
// The program starts etcd in a temporary folder, unless ETCD_ENDPOINTS names a cluster (comma-separated; plain or
// TLS with the system's roots, no password). It serves the ledger, starts itself twice, as workers A and B, and
// prints what happens as it happens:
//
//   - A gets the lock and writes. B waits for the lock.
//   - A reads the ledger, looks at its lock, which is fine, and is stopped by SIGSTOP right before it writes.
//   - A's lease runs out, B gets the lock, with a larger token, and writes.
//   - A goes on where it was and sends its write. The ledger has seen B's token and refuses A's.
//
// No check on A's side could have helped: a pause can always come between the check and the write. The ledger
// needs no clock to know better, only the token that goes with every write.
//
// Both workers run the same code: worker.go is what a program of your own would do, and internal/ledger is what the
// resource behind it has to do, a SQLite database behind an HTTP server. The rest makes the pause happen at the right moment and shows it. Nothing
// sleeps for luck: each step waits for the one before it to be seen.
//
// The exit status is 0 only if the late write has reached the ledger and was refused there, and the ledger is
// intact. It is 1 in every other case.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// limit bounds the run, so that it ends within half a minute even if something hangs. It takes
// about three seconds, and five on a terminal.
const limit = 25 * time.Second

// pace is the time between two lines on a terminal.
const pace = 120 * time.Millisecond

type options struct {
	fenced    bool
	verbose   bool
	endpoints []string // empty: start etcd
}

func main() {
	if text, ok := os.LookupEnv(workerEnv); ok {
		os.Exit(workerMain(text))
	}
	os.Exit(parentMain(os.Args[1:]))
}

func parentMain(args []string) int {
	opts, err := parse(args)
	if err != nil {
		return 1 // the flag package has told why
	}
	if !canPause {
		fmt.Fprintln(os.Stderr, "quickstart: this system has no SIGSTOP to pause a process with: run it on Linux, macOS or WSL")
		return 1
	}
	// A reader that goes away (quickstart | head) ends the run like Ctrl-C does, not the process at once.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the clean-up
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the run took longer than %v", limit))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	tl := timeline.New(os.Stdout, pace, fail)
	v, err := run(ctx, opts, tl)
	if err != nil {
		tl.Flush()
		fmt.Fprintf(os.Stderr, "quickstart: failed in the step %q: %v\n", tl.Step(), err)
		return 1
	}
	v.print(tl)
	if !v.ok || tl.Failed() {
		return 1
	}
	return 0
}

func parse(args []string) (options, error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	noFence := flags.Bool("no-fence", false, "switch the check at the ledger off, to see what it prevents")
	verbose := flags.Bool("v", false, "show the logs of etcd and of the workers")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "quickstart takes no arguments, but got %q\n", flags.Args())
		flags.Usage()
		return options{}, errors.New("arguments")
	}
	opts := options{fenced: !*noFence, verbose: *verbose}
	for endpoint := range strings.SplitSeq(os.Getenv("ETCD_ENDPOINTS"), ",") {
		if endpoint = strings.TrimSpace(endpoint); endpoint != "" {
			opts.endpoints = append(opts.endpoints, endpoint)
		}
	}
	return opts, nil
}
