//go:build unix

package demo

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// rest is how long after its end a process is started again.
const rest = 2 * time.Second

// leaveToPerson starts the processes, tells what to try, and starts again what has ended, until ctx ends.
func (s *stage) leaveToPerson(ctx context.Context) error {
	if err := s.gather(ctx); err != nil {
		return err
	}
	s.tl.Begin("It is your turn, in another terminal; Ctrl-C ends it")
	s.instruct()
	s.tl.Note(timeline.Plain, "")
	for {
		e, err := s.record.await(ctx, s.scene, func(e event) bool { return e.what == hasEnded && s.nodes[e.node.id] == e.node })
		if err == nil {
			err = s.startAgain(ctx, e.node)
		}
		if ctx.Err() != nil {
			return s.dismiss(context.WithoutCancel(ctx))
		}
		if err != nil {
			return err
		}
	}
}

// startAgain is what a supervisor does.
func (s *stage) startAgain(ctx context.Context, p *process) error {
	p.kill() // which has nothing more to do than to wait for what it has logged
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.tl.Add(timeline.Main, 0, timeline.Plain, fmt.Sprintf("starts %s again", p.id))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience) // not to be stopped half-way
	defer cancel()
	return s.start(ctx, p.id)
}

// instruct prints what a person can do.
func (s *stage) instruct() {
	a, b := s.nodes["A"], s.nodes["B"]
	lines := []string{"A leads. The processes, of which one that ends is started again after " + rest.String() + ":"}
	for _, p := range s.inOrder() {
		lines = append(lines, fmt.Sprintf("    %s  pid %-7d %s", p.id, p.proc.Pid, p.url))
	}
	pid := a.proc.Pid
	lines = append(lines,
		"What to try:",
		fmt.Sprintf("    curl %s/leader; curl %s/healthz", b.url, b.url),
		fmt.Sprintf("    kill -STOP %d; sleep 5; kill -CONT %d   # the leader is paused past its lease of %v", pid, pid, ttl),
		fmt.Sprintf("    kill -KILL %d   # the leader dies", pid),
		fmt.Sprintf("    kill -TERM %d   # it resigns", pid),
		fmt.Sprintf("    curl -X POST '%s/transfer?to=B'   # it hands over", a.url),
		"One more process:",
		fmt.Sprintf("    go -C examples run ./leader -join -id D -endpoints %s -name %s -ledger %s -ttl %v", s.server.Endpoint(), electionName, s.url, ttl),
	)
	s.tl.Note(timeline.Plain, strings.Join(lines, "\n"))
}

// dismiss ends all processes in good order, also those that a person has stopped.
func (s *stage) dismiss(ctx context.Context) error {
	s.tl.Begin("All stop")
	for _, p := range s.inOrder() {
		select {
		case <-p.ended:
			continue
		default:
		}
		if err := s.signal(p, syscall.SIGTERM, "TERM"); err != nil {
			return err
		}
		if err := p.proc.Signal(syscall.SIGCONT); err != nil {
			return fmt.Errorf("wake %s up: %w", p.id, err)
		}
		if err := s.endOf(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
