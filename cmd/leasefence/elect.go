package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/leasefence/leasefence/cmd/leasefence/internal/process"
	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

func (a *app) electCommand() *cobra.Command {
	var c command
	cmd := &cobra.Command{
		Use:   "elect NAME -- CMD [ARG...]",
		Short: "Run a command for as long as this process leads",
		Long: `elect campaigns in the election called NAME, and runs CMD while it leads. When CMD ends, elect resigns and exits with CMD's exit
code. If the leadership is lost, or somebody asks for its release, elect stops CMD, campaigns again, and starts CMD again when it
leads again. etcdctl elect and concurrency.Election of the same name are candidates of the same election. Observers see --owner
as the leader's value. At its start elect gives up if etcd does not answer for about --ttl; later it campaigns until etcd is back.
` + behaviour + exitCodes,
		DisableFlagsInUseLine: true,
		Example: `  leasefence elect scheduler --owner 10.0.0.7:8080 -- scheduler
  leasefence elect scheduler --ttl 5s -- sh -c 'exec scheduler --token "$LEASEFENCE_TOKEN"'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, command, err := split(cmd, args, "NAME -- CMD")
			if err != nil {
				return err
			}
			if len(names) > 1 {
				return usageError("%d names, want one", len(names))
			}
			c.cmd = command
			if err := c.check(); err != nil {
				return err
			}
			return a.elect(c, names[0])
		},
	}
	c.register(cmd)
	return cmd
}

// tenure is a leadership under which the command is to run. The answer is nil if the command exits with 0.
type tenure struct {
	hold

	answer chan<- error
}

// elect runs the command while this process leads. Its error, if any, is an [exitError].
func (a *app) elect(c command, name string) error {
	path, err := exec.LookPath(c.cmd[0])
	if err != nil {
		return cannotRun(err)
	}
	signals := process.CatchSignals()
	s, err := a.open(context.Background(), c, signals, func(lease.Acquired) {})
	defer s.close()
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	terms := make(chan tenure)
	done := make(chan error, 1)
	go func() { done <- s.campaign(ctx, name, terms) }()
	// The main thread has to start the command (see process.Start), so campaign sends each tenure here.
	for {
		select {
		case err := <-done:
			return elected(err)
		case sig := <-signals:
			cancel()
			<-done //nolint:errcheck // it only says that it was cancelled
			return interrupted(sig)
		case t := <-terms:
			child, err := process.Start(path, c.cmd, t.environment())
			if err != nil {
				t.answer <- cannotRun(err)
				continue
			}
			stop := s.supervise(child, t.hold, c.grace, signals)
			if stop.lost || errors.Is(t.Err(), lease.ErrLost) {
				process.SignalGroup(child, process.SIGKILL) // processes of the command may have outlived it
			}
			err = outcome(child)
			if stop.signal != nil {
				cancel() // the signal is meant for leasefence, too, whatever has ended the leadership
			}
			t.answer <- err
			if stop.signal != nil {
				<-done //nolint:errcheck // it only says that it was cancelled
				return err
			}
		}
	}
}

// campaign campaigns until the command has ended or ctx ends, and has the command run for each leadership.
func (s *session) campaign(ctx context.Context, name string, terms chan<- tenure) error {
	ended := false // the command has exited with 0 while this process led
	lead := func(ctx context.Context, token fence.Token) error {
		l, _ := election.FromContext(ctx)
		answer := make(chan error)
		select {
		case terms <- tenure{hold{l, []string{name}, token.String(), l.Key(), false}, answer}:
			err := <-answer
			ended = err == nil && l.Err() == nil
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := election.Run(ctx, s.Session, name, election.Options{}, lead, election.WithOnLost(func(err error) {
		ended = false
		if lost, ok := errors.AsType[*lease.LostError](err); ok {
			err = lost
		}
		s.say("%s: %v; campaigning again", name, err)
	}))
	if ended && err != nil { // to resign has failed, which does not matter to the command
		s.say("%v", err)
		return nil
	}
	return err
}

// elected turns the end of a campaign into an exit code.
func elected(err error) error {
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit
	}
	return &exitError{exitNotObtained, fmt.Errorf("not elected: %w", err)}
}
