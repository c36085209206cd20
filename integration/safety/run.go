package main

import (
	"context"
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

	"github.com/leasefence/leasefence/integration/safety/mix"
)

func runMix(args []string, out io.Writer) (err error) {
	opts := mix.Options{Progress: out}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Uint64Var(&opts.Seed, "seed", rand.Uint64(), "of the random choices; default: a new one each time")
	flags.DurationVar(&opts.Duration, "duration", 2*time.Minute, "of the mix; a round that has begun is finished")
	flags.BoolVar(&opts.First, "first", false, "stop after the first round with a violation")
	flags.StringVar(&opts.Dir, "o", "", "keep all histories in this `folder`; default: only those with violations, in a temporary folder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || opts.Duration <= 0 {
		return errors.New("run takes no arguments, and a positive duration")
	}
	if opts.KeepAll = opts.Dir != ""; opts.KeepAll {
		err = os.MkdirAll(opts.Dir, 0o750)
	} else {
		opts.Dir, err = os.MkdirTemp("", "safety")
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "seed %d, %v, histories in %s\n", opts.Seed, opts.Duration, opts.Dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	data := filepath.Join(opts.Dir, "data")
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	r, err := mix.Run(ctx, opts)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "\n%s\n", r)
	return verdict(out, r, opts)
}

// verdict prints the commands that show each kept history, and returns an error if the run has failed. It removes the
// folder if no history was kept and the caller has not asked for histories.
func verdict(out io.Writer, r *mix.Report, opts mix.Options) error {
	for _, h := range r.Histories {
		_, _ = fmt.Fprintf(out, "go -C integration run ./safety check %s\n", h)
		_, _ = fmt.Fprintf(out, "go -C integration run ./safety trace %s > %s.trace.json\n", h, h)
	}
	if len(r.Histories) == 0 && !opts.KeepAll {
		if err := os.RemoveAll(opts.Dir); err != nil {
			return err
		}
	}
	missed := r.Missed()
	for _, m := range missed {
		_, _ = fmt.Fprintln(out, "too little:", m)
	}
	if len(r.Violations) > 0 || len(missed) > 0 {
		return fmt.Errorf("%w: %d violations, %d floors missed; seed %d", errFailed, len(r.Violations)+r.More, len(missed), r.Seed)
	}
	_, _ = fmt.Fprintln(out, "passed")
	return nil
}
