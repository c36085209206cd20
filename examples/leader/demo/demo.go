//go:build unix

// Package demo shows what a service of three processes does when its leaders die, hang, hand over and stop. It starts
// the processes as an operator would, this program with -join, and knows of them what an operator does: their logs,
// their HTTP, their signals. Nothing in them knows of it.
package demo

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

const (
	ttl          = stage.TTL
	electionName = "demo/leader"
	// limit bounds the scenes, which take about ten seconds, and twenty on a terminal.
	limit = 60 * time.Second
)

// show is the demo.
type show struct {
	*stage.Stage
	door *door
}

// Run starts everything, plays the scenes and prints a summary. On return nothing is left
// running. The error says what did not happen as it should.
func Run(ctx context.Context, opts Options, out *os.File) error {
	d := newDoor()
	return stage.Run(ctx, stage.Options{
		Name: "leader", First: "Three processes start", Linger: 3 * time.Second, Before: d.before,
		NoFence: opts.NoFence, Verbose: opts.Verbose,
	}, out, func(ctx context.Context, s *stage.Stage) error {
		return (&show{s, d}).play(ctx)
	})
}

// start starts a process and waits until it campaigns.
func (s *show) start(ctx context.Context, id string) error {
	e, err := s.Start(ctx, id, "campaigns", "-join", "-json", "-id", id, "-name", electionName, "-http", "127.0.0.1:0",
		"-endpoints", s.Endpoint(), "-ledger", s.Ledger, "-ttl", ttl.String())
	if err != nil {
		return err
	}
	address, ok := e.More["http"].(string)
	if !ok {
		return errors.New(id + " does not say at which address it serves HTTP")
	}
	e.Node.URL = "http://" + address
	return nil
}

// settle waits for the end of a scene: the leader has written, all are in the queue and know who leads.
func (s *show) settle(ctx context.Context, leader string, queue ...string) error {
	e, err := s.LastOf(ctx, leader, stage.Leads)
	if err != nil {
		return err
	}
	if err := s.Wrote(ctx, e); err != nil {
		return err
	}
	if err := s.queued(ctx, queue...); err != nil {
		return err
	}
	return s.agree(ctx, leader)
}
