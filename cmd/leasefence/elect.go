package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/etcd"
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

// elect runs the command while this process leads. Its error, if any, is an [exitError].
func (a *app) elect(c command, name string) error {
	s, err := a.open(context.Background(), c)
	defer s.close()
	if err != nil {
		return err
	}
	var pause etcd.Backoff // longer after short leaderships
	for {
		began := time.Now()
		var l *election.Leadership
		err := s.interruptible(context.Background(), func(ctx context.Context) (err error) {
			l, err = election.Campaign(ctx, s.Session, name, election.Options{})
			return err
		})
		var did outcome
		switch {
		case err == nil:
			did = s.runUnder(hold{l, s.got, l.Resign, false})
			if did.signal != nil || did.lost == nil && !did.asked { // the signal is meant for leasefence, too
				return did.exit
			}
		case errors.Is(err, lease.ErrLost): // its place in the queue
			did.lost = err
		case !errors.Is(err, lease.ErrAskedToRelease): // before it knew that it led
			return err
		}
		if did.lost != nil {
			if lost, ok := errors.AsType[*lease.LostError](did.lost); ok {
				did.lost = lost
			}
			s.say("%s: %v; campaigning again", name, did.lost)
		}
		if time.Since(began) > 10*time.Second {
			pause.Reset()
		}
		if err := s.interruptible(context.Background(), pause.Sleep); err != nil {
			return err
		}
	}
}
