package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

func main() {
	etcdproc.Serve()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	scenarios *regexp.Regexp
	scale     scale
	short     bool
	list      bool
	cluster   bool
	separate  bool
	dir       string
	json      string
	svg       string
	profile   string
	profileOf string // the servers'
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(w)
	names := flags.String("scenarios", "", "run only the scenarios whose names match this `regexp`")
	rounds := flags.Int("rounds", 0, "rounds of each scenario; default 4, with -short 1")
	flags.BoolVar(&o.short, "short", false, "all scenarios, but small: figures mean little")
	flags.BoolVar(&o.list, "list", false, "list the scenarios and their goals, and run nothing")
	flags.BoolVar(&o.cluster, "cluster", false, "after one server, run all against a cluster of three as well")
	flags.BoolVar(&o.separate, "separate", false, "leasefence with Options.SeparateCommits")
	flags.StringVar(&o.dir, "dir", "", "keep the servers' data below this `folder`, which must be on a real disk; default: a temporary one")
	flags.StringVar(&o.json, "json", "", "write the results as JSON to this `file`")
	flags.StringVar(&o.svg, "svg", "", "write a chart of the ratios as SVG to this `file`")
	flags.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the clients to this `file`")
	flags.StringVar(&o.profileOf, "serverprofile", "", "write a CPU profile of each server to this `file`, with the member's name appended")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("argument %q, want flags only", flags.Arg(0))
	}
	var err error
	if o.scenarios, err = regexp.Compile(*names); err != nil {
		return o, fmt.Errorf("-scenarios: %w", err)
	}
	o.scale = fullScale()
	if o.short {
		o.scale = shortScale()
	}
	if *rounds < 0 {
		return o, fmt.Errorf("-rounds is %d, want 1 or more", *rounds)
	}
	if *rounds > 0 {
		o.scale.rounds = *rounds
	}
	return o, nil
}

// run is the program, less what ends its process.
func run(ctx context.Context, args []string, w io.Writer) error {
	o, err := parse(args, w)
	if err != nil {
		return err
	}
	return o.run(ctx, w)
}
