package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
