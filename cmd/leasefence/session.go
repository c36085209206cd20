package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/cmd/leasefence/internal/process"
	"github.com/leasefence/leasefence/lease"
)

// session is the session that a command runs in, with its client.
type session struct {
	*lease.Session
	command

	app      *app
	path     string // of CMD
	signals  <-chan os.Signal
	client   *clientv3.Client
	got      lease.Acquired // the last success; set before the acquisition returns
	messages sync.WaitGroup
}

// interruptible runs obtain with a context that ends with ctx or when a signal arrives.
func (s *session) interruptible(ctx context.Context, obtain func(context.Context) error) error {
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
	case sig := <-s.signals:
		cancel()
		<-done // if it has obtained a lock after all, the end of the session releases that
		return &exitError{process.SignalCode(sig), fmt.Errorf("%s while waiting", sig)}
	}
}

// say writes a message to standard error in the background: if nobody reads that, the write blocks, and the command
// would not be stopped in time. close waits for it.
func (s *session) say(format string, args ...any) {
	s.messages.Go(func() { s.app.say(format, args...) })
}

// open looks for CMD and opens a session, unless ctx ends or a signal arrives first. The caller closes it even if that
// fails.
func (a *app) open(ctx context.Context, c command) (s *session, err error) {
	s = &session{app: a, command: c}
	if s.path, err = exec.LookPath(c.cmd[0]); err != nil {
		return s, cannotRun(err)
	}
	s.signals = process.CatchSignals()
	err = s.interruptible(ctx, func(ctx context.Context) (err error) {
		s.client, err = a.connect(ctx, c.ttl) // the bound of NewSession below
		if err != nil && ctx.Err() != nil {   // etcd's client does not report the cause
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, c.ttl, silent(c.ttl, a.etcd.endpoints))
		defer cancel()
		s.Session, err = lease.NewSession(ctx, s.client, lease.Options{
			TTL: c.ttl,
			// The library's default, and the time to stop the command.
			Margin: min(c.ttl/10, time.Second) + c.grace,
			Owner:  c.owner,
			Era:    uint16(c.era), //nolint:gosec // check has bounded it
			Logger: a.logger(),
			Hooks: &lease.Hooks{AcquireEnd: func(_ context.Context, _ lease.Acquisition, got lease.Acquired) {
				if got.Err == nil {
					s.got = got
				}
			}},
		})
		return err
	})
	return s, err
}

// cleanUp bounds each of the two requests of a clean-up, the release and the end of the session. Whoever stops leasefence,
// such as Kubernetes, kills it after a while, and the exit code is lost then. The lease expires by itself.
const cleanUp = 3 * time.Second

// close revokes the lease. etcd deletes the keys of waiters and holders with it.
func (s *session) close() {
	defer s.messages.Wait()
	if s.client != nil {
		defer func() { _ = s.client.Close() }()
	}
	if s.Session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		s.say("%v", err)
	}
}

// hold is a lock of any kind, or a leadership, while a command runs under it.
type hold interface {
	Context() context.Context // ends with the hold
	Err() error               // nil while it is held; reads the clock, so it is right before the context ends
	Deadline() time.Time      // of the last renewal, also when the hold was lost at it
}

// outcome is what happened while a command ran.
type outcome struct {
	exit   error     // with the command's exit code; nil for 0
	lost   error     // the hold was lost before the command ended
	asked  bool      // somebody asked for the release of the hold
	signal os.Signal // the last signal that was passed on and asks the command to end; SIGHUP may only mean a reload
}

// runUnder runs a command under the hold that the session has obtained last, and releases the hold. The goroutine of main
// calls it, as process.Start wants.
func (s *session) runUnder(h hold, release func(context.Context) error) (did outcome) {
	child, err := process.Start(s.path, s.cmd, s.environment())
	if err != nil {
		did.exit = cannotRun(err)
		return did
	}
	signal, lost := s.supervise(child, h)
	did.signal = signal
	ended := h.Err() // nil: the command ended under the hold; a later loss does not matter to it
	did.asked = ended != nil && !errors.Is(ended, lease.ErrLost)
	if code := process.ExitCode(child.ProcessState); code != 0 {
		did.exit = &exitError{code: code}
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	err = release(ctx)
	switch {
	case lost && !errors.Is(err, lease.ErrLost): // lost after a request for release, which release does not report
		err = errors.Join(lease.ErrLost, err)
		fallthrough
	case errors.Is(err, lease.ErrLost) && (ended != nil || !lostInRelease(err)):
		process.SignalGroup(child, process.SIGKILL) // processes of the command may have outlived it
		did.lost = err
	case err != nil:
		s.say("%v", err) // the command ran under the hold all the time, and close revokes the lease
	}
	return did
}

// lostInRelease reports whether a hold that lasted until its release was lost during it. With any other reason release
// has found that the hold was lost before.
func lostInRelease(err error) bool {
	lost, ok := errors.AsType[*lease.LostError](err)
	return ok && lost.Reason == lease.ReasonDeadlinePassed
}

// supervise passes signals on to the command until it has ended, and ends it if the hold is lost.
func (s *session) supervise(cmd *exec.Cmd, h hold) (signal os.Signal, lost bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the outcome is in ProcessState
	}()
	over := h.Context().Done()
	// The grace counts from the deadline. leasefence may learn of that later, if it was stopped or the host suspended.
	graceLeft := func() time.Duration { return time.Until(h.Deadline().Add(s.grace)) }
	var kill <-chan time.Time
	var gone <-chan struct{}
	for running := true; running; {
		select {
		case sig := <-s.signals:
			process.SignalGroup(cmd, sig)
			if sig != process.SIGHUP {
				signal = sig
			}
		case <-over:
			over = nil
			cause, taken := errors.AsType[*lease.LostError](context.Cause(h.Context()))
			switch {
			case !taken: // somebody asked for the release: nobody else gets the lock before the command has ended
				s.say("%s: %v: CMD gets SIGTERM", strings.Join(s.got.Locks, ", "), context.Cause(h.Context()))
				process.SignalGroup(cmd, process.SIGTERM)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				gone = s.gone(ctx)
			case graceLeft() <= 0 || cause.Reason != lease.ReasonDeadlinePassed: // somebody else may have it already
				process.SignalGroup(cmd, process.SIGKILL)
			default:
				process.SignalGroup(cmd, process.SIGTERM)
				kill = time.After(0)
			}
		case <-kill:
			kill = nil
			if left := graceLeft(); left > 0 {
				kill = time.After(min(left, 100*time.Millisecond)) // a timer stands still while the host is suspended
			} else {
				process.SignalGroup(cmd, process.SIGKILL)
			}
		case <-gone:
			gone, lost = nil, true
			process.SignalGroup(cmd, process.SIGKILL)
		case <-ended:
			running = false
		}
	}
	process.TakeTerminalBack(cmd)
	return signal, lost
}

// gone returns a channel that is closed if the hold is lost after somebody has asked for its release. The hold's
// context cannot report that: it ended with the request.
func (s *session) gone(ctx context.Context) <-chan struct{} {
	lost, end := context.WithCancel(ctx)
	id := s.Status().LeaseID
	go func() {
		for st := range s.Changes(lost) {
			if st.State == lease.StateLost || st.LeaseID != id {
				end()
			}
		}
	}()
	mine := func(c lease.Contender) bool { return c.Lease == id }
	for _, name := range s.got.Locks {
		go func() {
			for q, err := range lease.Watch(lost, s.client, name) {
				if err != nil || !slices.ContainsFunc(q.Holders, mine) {
					end() // on an error, too: without a watch the loss would go unnoticed
				}
			}
		}()
	}
	return lost.Done()
}

// environment is the environment of a command: leasefence's own, with these variables instead of an outer leasefence's. If
// a name is in it twice, the last value counts.
func (s *session) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LEASEFENCE_SHARED=") })
	env = append(env,
		"LEASEFENCE_TOKEN="+s.got.Token.String(),
		"LEASEFENCE_LOCK="+strings.Join(s.got.Locks, "\n"),
		"LEASEFENCE_KEY="+s.got.Key,
	)
	if s.shared {
		env = append(env, "LEASEFENCE_SHARED=1")
	}
	return env
}
