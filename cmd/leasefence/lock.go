package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/etcd"
	locks "github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// command has what lock and elect have in common: the command to run, and the options of its session.
type command struct {
	ttl, grace time.Duration
	owner      string
	era        uint
	shared     bool // a read lock; never of elect
	cmd        []string
}

func (c *command) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&c.ttl, "ttl", 10*time.Second, "how long the hold outlives a leasefence that has died; 2s or more")
	cmd.Flags().DurationVar(&c.grace, "grace", -1, "time from SIGTERM to SIGKILL when renewals fail, up to a fifth of --ttl")
	cmd.Flags().Lookup("grace").DefValue = "a tenth of --ttl"
	cmd.Flags().UintVar(&c.era, "era", 0, "raise it after a restore of etcd, so that new tokens are larger than old ones; see explain")
	cmd.Flags().StringVar(&c.owner, "owner", "", "text that tells people who the holder is (default host/pid)")
}

// check sets the default of --grace and checks the flags.
func (c *command) check() error {
	if c.grace == -1 {
		c.grace = c.ttl / 10
	}
	switch {
	case c.ttl < 2*time.Second || c.ttl > 2_500_000*time.Hour: // the longest that etcd grants
		return usageError("--ttl is %v, want 2s to 2500000h", c.ttl)
	case c.grace < 0 || c.grace > c.ttl/5: // with the default margin it stays below TTL/3, the largest Options.Margin
		return usageError("--grace is %v, want 0s to a fifth of --ttl, %v", c.grace, c.ttl/5)
	case len(c.owner) > 4<<10:
		return usageError("--owner has %d bytes, want 0 to %d", len(c.owner), 4<<10)
	case c.era > 32767:
		return usageError("--era is %d, want 0 to 32767", c.era)
	}
	return nil
}

// split splits args into the names before "--" and CMD after it, and checks the names.
func split(cmd *cobra.Command, args []string) (names, command []string, err error) {
	at := cmd.ArgsLenAtDash()
	if at < 1 || at == len(args) {
		return nil, nil, usageError("want NAME -- CMD")
	}
	for _, name := range args[:at] {
		if err := locks.CheckName(name); err != nil {
			return nil, nil, usageError("NAME %w", err)
		}
	}
	return args[:at], args[at:], nil
}

// theLock has the arguments and flags of "lock".
type theLock struct {
	command

	names    []string
	all, try bool
	permits  int
	wait     time.Duration
}

const behaviour = `
CMD inherits standard input, output and error. Its environment has LEASEFENCE_TOKEN, the fencing token in decimal, which CMD
should send with every write; LEASEFENCE_LOCK, the lock's name; and LEASEFENCE_KEY, its key in etcd. CMD runs in a process
group of its own, and leasefence passes SIGINT, SIGTERM, SIGQUIT and SIGHUP on to the whole group. There is no job control:
Ctrl-Z stops CMD alone, which keeps the lock, and the next signal that is passed on continues it. CMD has the terminal while it
runs, so a pager behind leasefence would wait for it: put the pipe into CMD, as in -- sh -c 'report | less'. If standard input is
no terminal, CMD does not have the terminal, and the system stops it when it reads /dev/tty, as ssh does for a password.

If the hold is lost because renewals fail, CMD gets SIGTERM and, if it has not ended after --grace, SIGKILL. The grace is taken
off the local deadline, so CMD has ended before etcd lets anybody else in. If the lease was revoked or the key deleted, somebody
else may be in already, and CMD gets SIGKILL at once. If somebody asks for the release (leasefence release), CMD gets SIGTERM
and keeps the hold until it has ended.

When CMD has ended, leasefence waits at most about six seconds for etcd; if that does not answer, the hold ends with its lease.
It does not wait for processes that CMD leaves in the background, and its signals do not reach processes that move to another
group, or run as another user: write sudo before leasefence, not before CMD. If leasefence itself is killed (SIGKILL), Linux kills
CMD, unless that is set-user-ID, but not the processes that CMD has started; other systems kill neither. While
leasefence is stopped (SIGSTOP), it cannot stop CMD. In these cases only the check of the token at the resource helps. CMD
should not use the exit codes 64, 74 and 75 itself.

`

func (a *app) lockCommand() *cobra.Command {
	var l theLock
	cmd := &cobra.Command{
		Use:   "lock NAME [--shared | -n N | --all NAME...] [--try | --wait 10s] -- CMD [ARG...]",
		Short: "Run a command under a lock",
		Long: `lock waits for the lock called NAME, runs CMD while it holds the lock, and exits with CMD's exit code. Without --try and --wait
it waits as long as it takes. It always gives up if etcd does not answer for about --ttl. etcdctl lock and concurrency.Mutex of
the same name exclude it.

  --shared  a read lock, beside other readers. LEASEFENCE_SHARED is 1 then: the token is a reader's, for reads only
  -n N      one of N permits. LEASEFENCE_LOCK is the permit's slot, and the token is the slot's
  --all     all the names at once, with one token. LEASEFENCE_LOCK has a line for each name, LEASEFENCE_KEY is the first's key
` + behaviour + exitCodes,
		DisableFlagsInUseLine: true,
		Example: `  leasefence lock jobs/nightly -- backup --all
  leasefence lock jobs/nightly --try -- sh -c 'curl -H "Fencing-Token: $LEASEFENCE_TOKEN" https://store/backup'
  leasefence lock reports --shared --wait 10s -- report
  leasefence lock exports -n 3 -- export
  leasefence lock --all accounts/a accounts/b -- transfer`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if l.names, l.cmd, err = split(cmd, args); err != nil {
				return err
			}
			if err := l.check(cmd.Flags().Changed("wait"), cmd.Flags().Changed("permits")); err != nil {
				return err
			}
			return a.lock(l)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&l.shared, "shared", false, "take a read lock")
	f.IntVarP(&l.permits, "permits", "n", 0, "take one of this many permits, 1 to 1024")
	f.BoolVar(&l.all, "all", false, "take all the names")
	f.BoolVar(&l.try, "try", false, "give up at once if the lock is held")
	f.DurationVar(&l.wait, "wait", 0, "give up after this time (default: never while etcd answers)")
	cmd.MarkFlagsMutuallyExclusive("shared", "permits", "all")
	cmd.MarkFlagsMutuallyExclusive("try", "wait")
	l.register(cmd)
	return cmd
}

func (l *theLock) check(wait, permits bool) error {
	broken := slices.IndexFunc(l.names, func(name string) bool { return strings.Contains(name, "\n") })
	switch {
	case permits && (l.permits < 1 || l.permits > 1024):
		return usageError("-n is %d, want 1 to 1024", l.permits)
	case !l.all && len(l.names) > 1:
		return usageError("%d names: several take --all", len(l.names))
	case len(slices.Compact(slices.Sorted(slices.Values(l.names)))) > locks.MostInSet:
		return usageError("--all: %d names, want %d at most", len(l.names), locks.MostInSet)
	case l.all && broken >= 0: // in LEASEFENCE_LOCK it would be two names
		return usageError("--all: NAME %q has a line break", l.names[broken])
	case wait && l.wait <= 0:
		return usageError("--wait is %v, want more than 0s; --try does not wait", l.wait)
	}
	return l.command.check()
}

// lock acquires the lock, runs the command and releases the lock. Its error, if any, is an [exitError].
func (a *app) lock(l theLock) error {
	ctx := context.Background()
	if l.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.wait, fmt.Errorf("not obtained in %v", l.wait))
		defer cancel()
	}
	s, err := a.open(ctx, l.command)
	defer s.close()
	if err != nil {
		return err
	}

	var held lock
	err = s.interruptible(ctx, func(ctx context.Context) (err error) {
		held, err = l.obtain(ctx, s.Session)
		return err
	})
	if err != nil {
		return err
	}
	did := s.runUnder(held, held.Unlock)
	if did.lost != nil {
		return &exitError{exitLost, did.lost}
	}
	return did.exit
}

// lock is a handle of any kind of lock.
type lock interface {
	hold
	Unlock(ctx context.Context) error
}

// obtain waits for the lock. With an error, the lock is a nil pointer.
func (l *theLock) obtain(ctx context.Context, s *lease.Session) (lock, error) {
	name := l.names[0]
	switch {
	case l.shared && l.try:
		return s.TryRLock(ctx, name)
	case l.shared:
		return s.RLock(ctx, name)
	case l.permits > 0 && l.try:
		return s.TryPermit(ctx, name, l.permits)
	case l.permits > 0:
		return s.Permit(ctx, name, l.permits)
	case l.all && l.try:
		return s.TryLockAll(ctx, l.names...)
	case l.all:
		return s.LockAll(ctx, l.names...)
	case l.try:
		return s.TryLock(ctx, name)
	default:
		return s.Lock(ctx, name)
	}
}

func cannotRun(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitCannotRun, err}
}

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
			names, command, err := split(cmd, args)
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
			did = s.runUnder(l, l.Resign)
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
