package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// run starts everything, runs the scenario and judges it. On return nothing is left running.
func run(ctx context.Context, opts options, tl *timeline.Timeline) (_ verdict, err error) {
	tl.Header()
	tl.Begin("Two processes start; A asks for the lock first")
	s := &scenario{tl: tl}
	if s.ledger, err = openLedger(ctx, opts.fenced, tl); err != nil {
		return verdict{}, err
	}
	defer func() { err = errors.Join(err, s.ledger.Close()) }()
	if s.cluster, err = openCluster(ctx, tl, opts); err != nil {
		return verdict{}, err
	}
	defer func() { err = errors.Join(err, s.cluster.close(ctx)) }()
	handler, err := s.ledger.Handler()
	if err != nil {
		return verdict{}, err
	}
	url, stop, err := ledger.Serve(handler)
	if err != nil {
		return verdict{}, fmt.Errorf("serve the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	if opts.fenced {
		tl.Add(timeline.Ledger, 0, timeline.Plain, "is an empty SQLite database that looks at the token of every write")
	} else {
		tl.Add(timeline.Ledger, 0, timeline.Bad, "is an empty SQLite database that does NOT look at tokens: -no-fence")
	}

	config := workerConfig{Endpoints: s.cluster.endpoints, Prefix: s.cluster.prefix, Ledger: url, Verbose: opts.verbose}
	start := func(name string, amounts ...int) (*child, error) {
		config.Name, config.Amounts = name, amounts
		c, err := startChild(ctx, tl, config)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		return c, nil
	}
	if s.a, err = start("A", 100, 50); err != nil {
		return verdict{}, err
	}
	defer func() { err = s.a.explain(err) }()
	if s.b, err = start("B", 10); err != nil {
		return verdict{}, err
	}
	defer func() { err = s.b.explain(err) }()

	for _, step := range []func(context.Context) error{s.contend, s.write, s.pause, s.takeOver, s.wakeUp, s.finish} {
		if err := step(ctx); err != nil {
			return verdict{}, err
		}
	}
	return judge(ctx, s.tokenA, s.tokenB, s.ledger)
}
