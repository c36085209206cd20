// Leader is a service of several processes of which one leads and writes to a fenced resource. If the leader dies,
// hangs or is told to stop, another one leads.
//
//	go -C examples run ./leader            # watch it: starts all there is to it, kills and pauses leaders
//	go -C examples run ./leader -no-fence  # the late write of a paused leader is accepted: exit status 1
//
// All of that needs nothing but Go. What a process of your own would do is in three files, and the rest of this
// folder can be thrown away:
//
//   - node.go: the life of a process. It campaigns with election.Run, for as long as it runs.
//   - work.go: what the leader does, with its token in every write.
//   - api.go: GET /leader, GET /healthz, POST /transfer?to=ID.
//
// With -join the program is one such process, as it would be deployed, with an etcd that is there already:
//
//	leader -join -id A -endpoints 10.0.0.1:2379,10.0.0.2:2379 -name reports/leader -http 10.0.0.5:8080
//
// -help lists the flags for an etcd that asks for a user, a password or certificates.
//
// It ends with SIGTERM or Ctrl-C: it resigns first, so that the next one leads within milliseconds. Then its exit
// status is 0. If it ends with another, start it again. If the ledger has seen tokens that etcd has not given out, because
// etcd was restored from a snapshot, it ends and says so: start all processes with a higher -era.
//
// The demo, below demo/, starts an etcd, the resource (the ledger of examples/internal/ledger) and three such
// processes. Its exit status is 0 if everything has happened as it should: no two leaders at a time, no stale write
// accepted.
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
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the clean-up

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
	node config // with -join

	noFence bool // without
}

func parse(args []string) (options, error) {
	var o options
	var era uint
	flags := flag.NewFlagSet("leader", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run tells what is wrong
	flags.BoolVar(&o.join, "join", false, "be one process of the service, and not the demo")
	endpoints := flags.String("endpoints", "127.0.0.1:2379", "with -join: etcd's addresses, comma-separated")
	flags.StringVar(&o.node.name, "name", "leader", "with -join: the election's name")
	flags.StringVar(&o.node.id, "id", "", "with -join: this process's name, which others see when it leads")
	flags.StringVar(&o.node.http, "http", "127.0.0.1:0", "with -join: the address to serve HTTP at")
	flags.StringVar(&o.node.ledger, "ledger", "", "with -join: URL of the ledger to write to; without one the leader only leads")
	flags.UintVar(&era, "era", 0, "with -join: raise it after a restore of etcd; every process has the same, 0 to 32767")
	o.etcd.Register(flags)
	flags.DurationVar(&o.node.ttl, "ttl", 10*time.Second, "with -join: how long after the leader's death another one leads")
	flags.BoolVar(&o.json, "json", false, "with -join: log in JSON")
	flags.BoolVar(&o.noFence, "no-fence", false, "demo: switch the check at the ledger off, to see what it prevents")
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
