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
	"slices"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

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
	return os.WriteFile(o.svg, svg(title, o.disks[0].results), 0o644)
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

const (
	// sessionTTL is long enough for a busy machine to renew in time.
	sessionTTL = 30 * time.Second
	// roundTimeout bounds a round. Only a round that hangs, or whose server has died, reaches it.
	roundTimeout = 5 * time.Minute
	// closeTimeout bounds the clean-up after a round.
	closeTimeout = 30 * time.Second
)

type suite struct {
	endpoint string
	scale    scale
}

// run returns a result for each line of the scenario. In each round leasefence, the bare program and the peer run one
// after the other. The next round reverses the order, since the first may have an advantage.
func (s *suite) run(ctx context.Context, sc *scenario) ([]*result, error) {
	order := []role{ours, limit, peer}
	suite := *s
	if sc.most > 0 {
		suite.scale.rounds = min(suite.scale.rounds, sc.most)
	}
	blocks := max(sc.blocks, 1)
	suite.scale.lasting /= time.Duration(blocks)
	suite.scale.warmUp /= time.Duration(blocks)
	var results []*result
	for round := range suite.scale.rounds * blocks {
		for _, who := range order {
			prefix := fmt.Sprintf("bench/%s/%d/%d/", sc.name, who, round)
			impl, measure := sc.contender(who)
			samples, err := suite.round(ctx, prefix, impl, measure)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", sc.name, roleNames[who], err)
			}
			results = file(results, sc, who, samples)
			if err := suite.settle(ctx, sc.rests); err != nil {
				return nil, fmt.Errorf("%s: %w", sc.name, err)
			}
		}
		slices.Reverse(order)
	}
	return results, nil
}

func file(results []*result, sc *scenario, who role, samples []sample) []*result {
	for _, s := range samples {
		i := slices.IndexFunc(results, func(r *result) bool { return r.line == s.line })
		if i < 0 {
			i, results = len(results), append(results, &result{scenario: sc, line: s.line})
		}
		results[i].rounds[who] = append(results[i].rounds[who], s)
	}
	return results
}

// round runs one contender once, with new clients, sessions and names.
func (s *suite) round(ctx context.Context, prefix string, impl implementation, measure measurement) (samples []sample, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTimeout, fmt.Errorf("not done in %s", roundTimeout))
	defer cancel()
	if err := awaitNoStream(ctx, s.endpoint); err != nil {
		return nil, err
	}
	t := &trial{endpoint: s.endpoint, impl: impl, scale: s.scale, ttl: sessionTTL, prefix: prefix}
	defer func() { err = errors.Join(err, t.close(ctx)) }()
	samples, err = measure(ctx, t)
	for _, s := range samples {
		if err == nil && (s.ops == 0 || s.elapsed <= 0) {
			err = errors.New("no operation was done in time")
		}
	}
	return samples, err
}

// settle compacts the server's history, so that all rounds start alike.
func (s *suite) settle(ctx context.Context, rests bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	// Without this write the present revision might be compacted already.
	put, err := client.Put(ctx, "bench/settle", "")
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if _, err := client.Compact(ctx, put.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if rests {
		return sleep(ctx, s.scale.rest)
	}
	return nil
}

func (s *suite) commit(ctx context.Context) (time.Duration, error) {
	samples, err := s.round(ctx, "bench/commit/", bareLocks(), pairsOfOwners(1))
	if err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	return samples[0].median() / 2, nil // a pair takes two commits
}

// measurement measures one round of one contender.
type measurement func(ctx context.Context, t *trial) ([]sample, error)

// scenario is a measurement and its goals.
type scenario struct {
	name    string
	what    string      // short, for the chart
	unit    string      // an operation, whose latency is measured
	by      figure      // by which contenders are compared
	measure measurement // of leasefence and of the peer
	limit   measurement // of a bare program; nil: measure, of bare
	ours    func() implementation
	bare    func() implementation
	peer    func() implementation

	// Goals of each line: the least share of the limit, and the least ratio to the peer; 0 without a goal.
	leastShare, leastTimes float64

	blocks int  // how many blocks a round is split into; default 1
	most   int  // rounds at most; default: no limit
	rests  bool // pause after each round, since the server has deleted many keys
}

func (sc *scenario) contender(who role) (implementation, measurement) {
	switch {
	case who == ours:
		return sc.ours(), sc.measure
	case who == peer:
		return sc.peer(), sc.measure
	case sc.limit != nil:
		return implementation{}, sc.limit
	default:
		return sc.bare(), sc.measure
	}
}

type scale struct {
	rounds     int
	warmUp     time.Duration
	lasting    time.Duration // of one measurement
	leastTurns int           // in scenarios whose sections take a given time
	holds      int           // locks held by one process
	holdTTL    time.Duration
	holding    time.Duration // for how long they are held
	rest       time.Duration // the pause of scenarios with rests
}

func fullScale() scale {
	return scale{
		rounds: 4, warmUp: 500 * time.Millisecond, lasting: 2 * time.Second, leastTurns: 20,
		holds: 50_000, holdTTL: 10 * time.Second, holding: 30 * time.Second, rest: time.Second,
	}
}

func shortScale() scale {
	return scale{
		rounds: 1, warmUp: 100 * time.Millisecond, lasting: 400 * time.Millisecond, leastTurns: 5,
		holds: 2000, holdTTL: sessionTTL, holding: 2 * time.Second, rest: 200 * time.Millisecond,
	}
}
