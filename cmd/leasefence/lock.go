package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	locks "github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// command is what lock and elect have in common: a command to run, and the session for it.
type command struct {
	ttl, grace time.Duration
	owner      string
	era        uint
	cmd        []string
}

func (c *command) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&c.ttl, "ttl", 10*time.Second, "how long the hold outlives a leasefence that has died, 2s or more")
	cmd.Flags().DurationVar(&c.grace, "grace", -1, "from SIGTERM to SIGKILL when renewals fail, up to a fifth of --ttl")
	cmd.Flags().Lookup("grace").DefValue = "a tenth of --ttl"
	cmd.Flags().UintVar(&c.era, "era", 0, "to be raised after a restore of etcd, so that new tokens are larger; see explain")
	cmd.Flags().StringVar(&c.owner, "owner", "", "who this is, for people (default host/pid)")
}

// check completes what was given.
func (c *command) check() error {
	if c.grace == -1 {
		c.grace = c.ttl / 10
	}
	switch {
	case c.ttl < 2*time.Second:
		return usageError("--ttl is %v, want 2s or more", c.ttl)
	case c.grace < 0 || c.grace > c.ttl/5: // with the margin, less than a third
		return usageError("--grace is %v, want 0s to a fifth of --ttl, %v", c.grace, c.ttl/5)
	case c.era > 32767:
		return usageError("--era is %d, want 0 to 32767", c.era)
	}
	return nil
}

// split is the names before "--", and CMD behind it.
func split(cmd *cobra.Command, args []string, want string) (names, command []string, err error) {
	at := cmd.ArgsLenAtDash()
	if at < 1 || at == len(args) {
		return nil, nil, usageError("want %s", want)
	}
	for _, name := range args[:at] {
		if err := locks.CheckName(name); err != nil {
			return nil, nil, usageError("NAME %w", err)
		}
	}
	return args[:at], args[at:], nil
}

// theLock is what lock was asked for.
type theLock struct {
	command

	names            []string
	shared, all, try bool
	permits          int
	wait             time.Duration
}

const behaviour = `
CMD has leasefence's standard input, output and error. In its environment are LEASEFENCE_TOKEN, the fencing token, in decimal,
which it should hand to whatever it changes; LEASEFENCE_LOCK, the lock's name; and LEASEFENCE_KEY, its key in etcd. SIGINT,
SIGTERM, SIGQUIT and SIGHUP are passed on to it. It is a process group of its own, and a signal goes to all of the group. There
is no job control: Ctrl-Z stops CMD alone, which keeps the lock, and goes on with the next signal that is passed on.

If the hold is lost for want of renewals, CMD gets SIGTERM and, if it has not ended after --grace, SIGKILL. The grace is taken
off the local deadline, so all of that is over before etcd lets anybody else in. If the lease was revoked or the key deleted,
somebody else may be in already, and CMD gets SIGKILL at once. If somebody asks for the release (leasefence release), CMD gets
SIGTERM and the hold lasts until it has ended.

What CMD leaves behind in the background is not waited for, and what moves to another process group is not reached by signals.
If leasefence itself is killed (SIGKILL), Linux kills CMD with it, but not what CMD has started; on other systems CMD goes on,
too. If leasefence is stopped (SIGSTOP) it cannot stop CMD. Only the token at the resource helps then. CMD should not use the
codes 64, 74 and 75 itself.

`

func (a *app) lockCommand() *cobra.Command {
	var l theLock
	cmd := &cobra.Command{
		Use:   "lock NAME [--shared | -n N | --all NAME...] [--try | --wait 10s] -- CMD [ARG...]",
		Short: "Run a command under a lock",
		Long: `lock waits for the lock called NAME, runs CMD while it holds it, and ends with CMD's exit code. Without a flag it waits as long as
it takes. etcdctl lock and concurrency.Mutex of the same name exclude it.

  --shared  as a reader, beside other readers. LEASEFENCE_SHARED is 1 then: the token is a reader's, for reading alone
  -n N      one of N permits. LEASEFENCE_LOCK is the slot, which is what the token is for
  --all     all the names, with one token. LEASEFENCE_LOCK has a line for each name, LEASEFENCE_KEY is that of the first
` + behaviour + exitCodes,
		DisableFlagsInUseLine: true,
		Example: `  leasefence lock jobs/nightly -- backup --all
  leasefence lock jobs/nightly --try -- sh -c 'curl -H "Fencing-Token: $LEASEFENCE_TOKEN" https://store/backup'
  leasefence lock reports --shared --wait 10s -- report
  leasefence lock exports -n 3 -- export
  leasefence lock --all accounts/a accounts/b -- transfer`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if l.names, l.cmd, err = split(cmd, args, "NAME -- CMD"); err != nil {
				return err
			}
			if err := l.check(cmd.Flags().Changed("wait"), cmd.Flags().Changed("permits")); err != nil {
				return err
			}
			return a.lock(l)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&l.shared, "shared", false, "as a reader")
	f.IntVarP(&l.permits, "permits", "n", 0, "one of so many permits, 1 to 1024")
	f.BoolVar(&l.all, "all", false, "all of several names")
	f.BoolVar(&l.try, "try", false, "give up at once if the lock is held")
	f.DurationVar(&l.wait, "wait", 0, "give up after so long, also if etcd does not answer (default: never)")
	l.register(cmd)
	return cmd
}

func (l *theLock) check(wait, permits bool) error {
	kinds := 0
	for _, kind := range []bool{l.shared, permits, l.all} {
		if kind {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		return usageError("--shared, -n and --all: want one of them at most")
	case permits && (l.permits < 1 || l.permits > 1024):
		return usageError("-n is %d, want 1 to 1024", l.permits)
	case !l.all && len(l.names) > 1:
		return usageError("%d names: several take --all", len(l.names))
	case len(slices.Compact(slices.Sorted(slices.Values(l.names)))) > locks.MostInSet:
		return usageError("--all: %d names, want %d at most", len(l.names), locks.MostInSet)
	case l.try && wait:
		return usageError("--try and --wait: want one of them at most")
	case wait && l.wait <= 0:
		return usageError("--wait is %v, want more than 0s; --try does not wait", l.wait)
	}
	return l.command.check()
}

// lock obtains the lock, runs the command and releases the lock. Its error, if any, is an [exitError].
func (a *app) lock(l theLock) error {
	path, err := exec.LookPath(l.cmd[0])
	if err != nil {
		return cannotRun(err)
	}
	signals := catchSignals()
	keys := make(chan string, 1)
	ctx := context.Background()
	if l.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.wait, fmt.Errorf("not obtained in %v", l.wait))
		defer cancel()
	}
	s, err := a.open(ctx, l.command, signals, func(got lease.Acquired) { keys <- got.Key })
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return err
	}

	var h hold
	err = interruptible(ctx, signals, func(ctx context.Context) (err error) {
		h, err = l.obtain(ctx, s.Session)
		return err
	})
	if err != nil {
		return err
	}
	h.key = <-keys
	child, err := start(path, l.cmd, h)
	if err != nil {
		return cannotRun(err)
	}
	stop := s.supervise(child, h, l.grace, signals)
	held := h.err() == nil // what comes later is no matter of the command's
	release, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = h.unlock(release)
	switch {
	case stop.lost && !errors.Is(err, lease.ErrLost): // after it had been asked
		err = errors.Join(lease.ErrLost, err)
		fallthrough
	case errors.Is(err, lease.ErrLost) && (!held || !lostInUnlock(err)):
		signalGroup(child, syscall.SIGKILL) // what the command has started may have outlived it
		return &exitError{exitLost, err}
	case err != nil:
		a.say("%v", err) // the lock was held all the time, and the lease is about to be revoked
	}
	return outcome(child.ProcessState)
}

// lostInUnlock reports whether a lock that was held before Unlock was lost during it. With other reasons Unlock has found
// out that it had been lost before.
func lostInUnlock(err error) bool {
	lost, ok := errors.AsType[*lease.LostError](err)
	return ok && lost.Reason == lease.ReasonDeadlinePassed
}

// hold is what a command runs under.
type hold struct {
	ctx    context.Context //nolint:containedctx // the hold's own, which ends with it
	err    func() error    // nil while it is held; it looks at the clock itself
	unlock func(context.Context) error
	names  []string
	token  string
	key    string
	shared bool
}

// obtain waits for the lock.
func (l *theLock) obtain(ctx context.Context, s *lease.Session) (hold, error) {
	name := l.names[0]
	switch {
	case l.shared:
		acquire := s.RLock
		if l.try {
			acquire = s.TryRLock
		}
		h, err := acquire(ctx, name)
		if err != nil {
			return hold{}, err
		}
		return hold{ctx: h.Context(), err: h.Err, unlock: h.Unlock, names: l.names, token: h.Token().String(), shared: true}, nil
	case l.permits > 0:
		acquire := s.Permit
		if l.try {
			acquire = s.TryPermit
		}
		h, err := acquire(ctx, name, l.permits)
		if err != nil {
			return hold{}, err
		}
		return hold{ctx: h.Context(), err: h.Err, unlock: h.Unlock, names: []string{h.Name()}, token: h.Token().String()}, nil
	case l.all:
		acquire := s.LockAll
		if l.try {
			acquire = s.TryLockAll
		}
		h, err := acquire(ctx, l.names...)
		if err != nil {
			return hold{}, err
		}
		return hold{ctx: h.Context(), err: h.Err, unlock: h.Unlock, names: h.Names(), token: h.Token().String()}, nil
	}
	acquire := s.Lock
	if l.try {
		acquire = s.TryLock
	}
	h, err := acquire(ctx, name)
	if err != nil {
		return hold{}, err
	}
	return hold{ctx: h.Context(), err: h.Err, unlock: h.Unlock, names: l.names, token: h.Token().String()}, nil
}

func cannotRun(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitCannotRun, err}
}

// catchSignals keeps the signals that are passed on from ending leasefence. One that is ignored, as nohup has SIGHUP,
// stays ignored.
func catchSignals() <-chan os.Signal {
	// Or a message to a standard error that nobody reads would end leasefence, and CMD by SIGKILL. A signal that is caught,
	// unlike one that is ignored, is as usual for CMD.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	return signals
}

// interruptible runs obtain with a context that ends when a signal arrives, or with ctx.
func interruptible(ctx context.Context, signals <-chan os.Signal, obtain func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = obtain(ctx)
	}()
	select {
	case <-done:
		if _, ok := errors.AsType[*exitError](err); err == nil || ok {
			return err
		}
		return &exitError{exitNotObtained, err}
	case sig := <-signals:
		cancel()
		<-done // what it may have obtained is given back at the end of the session
		return interrupted(sig)
	}
}

func interrupted(sig os.Signal) error {
	return &exitError{signalCode(sig), fmt.Errorf("%s while waiting", sig)}
}

func signalCode(sig os.Signal) int {
	// Every signal is one of syscall's.
	return exitSignal + int(sig.(syscall.Signal))
}

// session is a session for a command, and its client.
type session struct {
	*lease.Session

	app    *app
	client *clientv3.Client
	ttl    time.Duration
}

// open opens a session before ctx ends. Acquired is called with what each acquisition has got.
func (a *app) open(ctx context.Context, c command, signals <-chan os.Signal, acquired func(lease.Acquired)) (*session, error) {
	s := &session{app: a, ttl: c.ttl}
	err := interruptible(ctx, signals, func(ctx context.Context) (err error) {
		s.client, err = a.connect(ctx, c.ttl) // as long as for a session
		if err != nil && ctx.Err() != nil {   // which etcd's client does not tell the cause of
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = interruptible(ctx, signals, func(ctx context.Context) (err error) {
		ctx, cancel := within(ctx, c.ttl, a.etcd.endpoints)
		defer cancel()
		s.Session, err = lease.NewSession(ctx, s.client, lease.Options{
			TTL: c.ttl,
			// What the library takes off by default, and time to end the command.
			Margin: min(c.ttl/10, time.Second) + c.grace,
			Owner:  c.owner,
			Era:    uint16(c.era), //nolint:gosec // check has seen to it
			Logger: a.logger(),
			Hooks: &lease.Hooks{AcquireEnd: func(_ context.Context, _ lease.Acquisition, got lease.Acquired) {
				if got.Err == nil {
					acquired(got)
				}
			}},
		})
		return err
	})
	return s, err
}

// close revokes the lease, which takes a place in the queue and the lock's key with it.
func (s *session) close() {
	defer func() { _ = s.client.Close() }()
	if s.Session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.ttl)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		s.app.say("%v", err)
	}
}
