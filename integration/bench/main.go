package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/version"

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

type options struct {
	chosen []*scenario
	scale  scale
	disks  []*disk
	svg    string
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(w)
	names := flags.String("scenarios", "", "run only the scenarios whose names match this `regexp`")
	rounds := flags.Int("rounds", 0, "rounds of each scenario; default 4, with -short 1")
	short := flags.Bool("short", false, "run all scenarios briefly: the figures mean little")
	flags.Func("dir", "keep the server's data below this `folder`, and measure on each if given more than once; default: a temporary folder",
		func(dir string) error {
			o.disks = append(o.disks, &disk{dir: dir})
			return nil
		})
	flags.StringVar(&o.svg, "svg", "", "write a chart of the ratios on the first folder as SVG to this `file`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("argument %q, want flags only", flags.Arg(0))
	}
	pattern, err := regexp.Compile(*names)
	if err != nil {
		return o, fmt.Errorf("-scenarios: %w", err)
	}
	var all []string
	for _, sc := range scenarios() {
		all = append(all, sc.name)
		if pattern.MatchString(sc.name) {
			o.chosen = append(o.chosen, sc)
		}
	}
	if len(o.chosen) == 0 {
		return o, fmt.Errorf("-scenarios: no scenario matches %q, want one of %q", *names, all)
	}
	o.scale = fullScale()
	if *short {
		o.scale = shortScale()
	}
	if *rounds < 0 {
		return o, fmt.Errorf("-rounds is %d, want 1 or more", *rounds)
	}
	if *rounds > 0 {
		o.scale.rounds = *rounds
	}
	if len(o.disks) == 0 {
		o.disks = []*disk{{dir: os.TempDir()}}
	}
	return o, nil
}

// run is the program without the exit of its process.
func run(ctx context.Context, args []string, w io.Writer) error {
	o, err := parse(args, w)
	if err != nil {
		return err
	}
	return o.run(ctx, table{bufio.NewWriter(w)})
}

func (o options) run(ctx context.Context, out table) error {
	for _, d := range o.disks {
		if err := o.measure(ctx, out, d); err != nil {
			return err
		}
	}
	out.summary(o.disks)
	if err := out.Flush(); err != nil || o.svg == "" {
		return err
	}
	title := fmt.Sprintf("leasefence on etcd %s, %d CPUs for clients and server, a commit takes %s ms",
		version.Version, runtime.NumCPU(), digits(milliseconds(o.disks[0].commit)))
	return os.WriteFile(o.svg, svg(title, bars(o.disks[0].results)), 0o644)
}

// disk is a folder, with the results of a server whose data is there.
type disk struct {
	dir     string
	commit  time.Duration // median time of bare transactions, one after the other
	results []*result
}

func (o options) measure(ctx context.Context, out table, d *disk) (err error) {
	dir, err := os.MkdirTemp(d.dir, "leasefence-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := etcdproc.Start(ctx, dir, 1, etcdproc.Settings{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Kill()) }()
	s := &suite{endpoint: cluster.Members[0].Endpoint(), scale: o.scale}
	if d.commit, err = s.commit(ctx); err != nil {
		return err
	}
	out.head(d)
	for _, sc := range o.chosen {
		results, err := s.run(ctx, sc)
		if err != nil {
			return err
		}
		d.results = append(d.results, results...)
		for _, r := range results {
			out.result(r)
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}
