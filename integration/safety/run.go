package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/integration/etcdproc/slowdisk"
	"github.com/leasefence/leasefence/integration/safety/mix"
)

// runRun is the command "run": a short run of the mix, which must reach its floors.
func runRun(args []string, out io.Writer) error {
	return runMix("run", args, out, mix.Options{Duration: 2 * time.Minute, Peer: 10 * time.Second, Restore: true}, mix.Floors())
}

// runSoak is the command "soak": a long run, by hand.
func runSoak(args []string, out io.Writer) error {
	return runMix("soak", args, out, mix.Options{Duration: 30 * time.Minute, Restore: true}, nil)
}

// errFailed reports that there were violations, or that the run has done too little. The report says which.
var errFailed = errors.New("failed")

func runMix(name string, args []string, out io.Writer, opts mix.Options, floors []mix.Floor) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Uint64Var(&opts.Seed, "seed", rand.Uint64(), "of the random choices; default: a new one each time")
	flags.DurationVar(&opts.Duration, "duration", opts.Duration, "of the mix; a round that has begun is finished")
	flags.DurationVar(&opts.TTL, "ttl", 0, "of all leases, in whole seconds; default 2s")
	flags.DurationVar(&opts.Peer, "peer", opts.Peer, "how long etcd's concurrency package runs under the same faults; 0: not at all")
	flags.BoolVar(&opts.First, "first", false, "stop after the first round with a violation")
	keep := flags.String("o", "", "keep all histories in this `folder`; default: only those with violations, in a temporary folder")
	report := flags.String("json", "", "write the report as JSON to this `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%w: %s takes no arguments", errUsage, name)
	}
	if err := folder(&opts, *keep); err != nil {
		return err
	}
	opts.Progress, opts.Floors = out, floors
	_, _ = fmt.Fprintf(out, "seed %d, %v, histories in %s\n", opts.Seed, opts.Duration, opts.Dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := runOn(ctx, opts)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "\n%s\n", r)
	if *report != "" {
		if err := writeJSON(*report, r); err != nil {
			return err
		}
	}
	return verdict(out, r, opts, floors)
}

// runOn builds a server whose disk can be made slow, and runs the mix on such members.
func runOn(ctx context.Context, opts mix.Options) (*mix.Report, error) {
	dir, err := os.MkdirTemp(opts.Dir, "server")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // an error leaves the program behind, no more
	if opts.Server, err = slowdisk.Build(ctx, dir); err != nil {
		return nil, err
	}
	return mix.Run(ctx, opts)
}

// folder sets where the run writes: keep, which it creates, or a new temporary folder.
func folder(opts *mix.Options, keep string) (err error) {
	opts.KeepAll, opts.Dir = keep != "", keep
	if keep == "" {
		opts.Dir, err = os.MkdirTemp("", "safety")
		return err
	}
	return os.MkdirAll(keep, 0o750)
}

// verdict prints the commands that show each kept history, and returns an error if the run has failed. It removes the
// members' data and, if no history was kept and the caller has not asked for histories, the whole folder.
func verdict(out io.Writer, r *mix.Report, opts mix.Options, floors []mix.Floor) error {
	for _, h := range r.Histories {
		_, _ = fmt.Fprintf(out, "go -C integration run ./safety check %s\n", h)
		_, _ = fmt.Fprintf(out, "go -C integration run ./safety trace %s > %s.trace.json\n", h, h)
	}
	err := os.RemoveAll(filepath.Join(opts.Dir, "data"))
	if len(r.Histories) == 0 && !opts.KeepAll {
		err = os.RemoveAll(opts.Dir)
	}
	if err != nil {
		return err
	}
	var missed []string
	switch {
	case floors != nil:
		missed = r.Missed(floors)
	case r.Counts.ControlStale == 0:
		missed = []string{"the unfenced control has taken no stale write, so nothing was tested"}
	}
	for _, m := range missed {
		_, _ = fmt.Fprintln(out, "too little:", m)
	}
	if len(r.Violations) > 0 || len(missed) > 0 {
		return fmt.Errorf("%w: %d violations, %d floors missed; seed %d", errFailed, len(r.Violations)+r.More, len(missed), r.Seed)
	}
	_, _ = fmt.Fprintln(out, "passed")
	return nil
}

func writeJSON(path string, r *mix.Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
