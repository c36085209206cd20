// Leader is a service of several processes, of which one leads and writes to a fenced resource. If the leader dies,
// hangs or is told to stop, another one leads.
//
//	go -C examples run ./leader            # the demo: starts everything, kills and pauses leaders
//	go -C examples run ./leader -no-fence  # the late write of a paused leader is accepted: exit status 1
//
// The demo needs nothing but Go. To start a service of your own, copy three files; it does not need the rest of this
// folder:
//
//   - node.go: the life of a process. It campaigns with election.Run, for as long as it runs.
//   - work.go: what the leader does, with its token in every write.
//   - api.go: GET /leader, GET /healthz, POST /transfer?to=ID.
//
// With -join the program is one process of the service, as you would deploy it, with an existing etcd:
//
//	leader -join -id A -endpoints 10.0.0.1:2379,10.0.0.2:2379 -name reports/leader -http 10.0.0.5:8080
//
// -help lists the flags for an etcd that requires a user, a password or certificates.
//
// SIGTERM and Ctrl-C end the process with status 0: it resigns first, so that the next candidate leads within
// milliseconds. If it ends with another status, start it again. If the ledger has seen tokens that etcd has not granted
// yet, because etcd was restored from a snapshot, the process ends and says so: start all processes with a higher -era.
//
// The demo, in demo/, starts etcd, the resource (the ledger of examples/internal/ledger) and three such processes. Its
// exit status is 0 if everything has happened as it should: never two leaders at a time, and no stale write accepted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/etcdflags"
	"github.com/leasefence/leasefence/examples/leader/demo"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err, "(-help lists the flags)")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program without clean-up

	if opts.join {
		opts.node.log, opts.node.warnings = newLog(opts.json, slog.LevelInfo), newLog(opts.json, slog.LevelWarn)
		if err := join(ctx, opts.node); err != nil {
			opts.node.log.Error("ends", "err", err)
			return 1
		}
		return 0
	}
	if err := demo.Run(ctx, opts.noFence, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		return 1
	}
	return 0
}

func newLog(json bool, level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if json {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}

type options struct {
	join bool
	json bool
	etcd etcdflags.Flags
	node config // for -join

	noFence bool // for the demo
}

func parse(args []string) (options, error) {
	var o options
	var era uint
	flags := flag.NewFlagSet("leader", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error
	flags.BoolVar(&o.join, "join", false, "run one process of the service instead of the demo")
	endpoints := flags.String("endpoints", "127.0.0.1:2379", "with -join: etcd's addresses, comma-separated")
	flags.StringVar(&o.node.name, "name", "leader", "with -join: the election's name")
	flags.StringVar(&o.node.id, "id", "", "with -join: this process's name, which others see when it leads")
	flags.StringVar(&o.node.http, "http", "127.0.0.1:0", "with -join: the address to serve HTTP at")
	flags.StringVar(&o.node.ledger, "ledger", "", "with -join: URL of the ledger to write to; without one the leader only leads")
	flags.UintVar(&era, "era", 0, "with -join: raise it after a restore of etcd, in all processes alike; 0 to 32767")
	o.etcd.Register(flags)
	flags.DurationVar(&o.node.ttl, "ttl", 10*time.Second, "with -join: the lease's TTL, after which another process leads if the leader dies")
	flags.BoolVar(&o.json, "json", false, "with -join: log in JSON")
	flags.BoolVar(&o.noFence, "no-fence", false, "demo: turn off the check of tokens at the ledger, to see what it prevents")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(os.Stdout)
			flags.PrintDefaults()
		}
		return options{}, err
	}
	var err error
	if o.node.etcd, err = o.etcd.Config(strings.Split(*endpoints, ",")); err != nil {
		return options{}, err
	}

	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("takes no arguments, but got %q", flags.Args())
	case o.join && o.node.id == "":
		return options{}, errors.New("-join needs an -id")
	case era > math.MaxInt16:
		return options{}, fmt.Errorf("-era is %d, want 0 to %d", era, math.MaxInt16)
	}
	o.node.era = uint16(era) //nolint:gosec // in range, see above
	return o, nil
}
