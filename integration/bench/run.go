package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// run does what the flags say.
func (o options) run(ctx context.Context, w io.Writer) error {
	var chosen []scenario
	for _, sc := range scenarios() {
		if o.scenarios.MatchString(sc.name) {
			chosen = append(chosen, sc)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-scenarios: no scenario matches %q; see -list", o.scenarios)
	}
	out := &table{w: w}
	if o.list {
		out.list(chosen)
		return out.err
	}
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return err
	}
	rep := newReport(o.short, o.separate)
	sizes := []int{1}
	if o.cluster {
		sizes = append(sizes, 3)
	}
	for _, members := range sizes {
		if err := o.against(ctx, out, members, chosen, rep); err != nil {
			return errors.Join(err, stopProfile())
		}
	}
	out.summary(rep.Results)
	return errors.Join(out.err, stopProfile(), o.write(rep))
}

// against runs scenarios against a new cluster.
func (o options) against(ctx context.Context, out *table, members int, chosen []scenario, rep *report) (err error) {
	dir, err := os.MkdirTemp(o.dir, "leasefence-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := etcdproc.Start(ctx, dir, members, etcdproc.Options{Profile: o.profileOf})
	if err != nil {
		return err
	}
	defer cluster.Stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, m := range cluster.Members {
		go func() {
			select {
			case <-m.Ended():
				cancel(fmt.Errorf("the etcd at %s has ended", m.Endpoint()))
			case <-ctx.Done():
			}
		}()
	}

	s := &suite{endpoints: cluster.Endpoints(), separate: o.separate, scale: o.scale}
	out.printf("etcd %s, members: %d, CPUs: %d, Go: %s, data in %s\n\n", rep.Etcd, members, rep.CPUs, rep.Go, dir)
	out.head()
	for _, sc := range chosen {
		results, err := s.run(ctx, sc)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return fmt.Errorf("%w: %w", cause, err)
			}
			return err
		}
		rep.Results = append(rep.Results, results...)
		for _, r := range results {
			out.result(r)
		}
		if out.err != nil {
			return out.err
		}
	}
	return nil
}

// write leaves the files that the flags ask for.
func (o options) write(rep *report) error {
	var errs [2]error
	if o.json != "" {
		errs[0] = rep.writeJSON(o.json)
	}
	if o.svg != "" {
		errs[1] = rep.writeSVG(o.svg)
	}
	return errors.Join(errs[:]...)
}

// startProfile writes a CPU profile of this process to a file, if it is told one.
func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
