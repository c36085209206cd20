//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

// lockAndRun obtains the lock, runs the command and releases the lock. Its error, if any, is an [exitError].
func lockAndRun(c config) error {
	path, err := exec.LookPath(c.command[0])
	if err != nil {
		return cannotRun(err)
	}
	signals := catchSignals()
	client, err := clientv3.New(c.etcd)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer func() { _ = client.Close() }()

	var session *lease.Session
	err = interruptible(signals, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.ttl, fmt.Errorf("etcd at %q has not answered for %v", c.etcd.Endpoints, c.ttl))
		defer cancel()
		session, err = lease.NewSession(ctx, client, lease.Options{
			TTL: c.ttl,
			// What the library takes off by default, and time to end the command.
			Margin: min(c.ttl/10, time.Second) + c.grace,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		return err
	})
	if session != nil {
		defer closeSession(session, c.ttl)
	}
	if err != nil {
		return err
	}

	acquire := session.Lock
	if !c.wait {
		acquire = session.TryLock
	}
	var lock *lease.Lock
	err = interruptible(signals, func(ctx context.Context) (err error) {
		lock, err = acquire(ctx, c.name)
		return err
	})
	if err != nil {
		return err
	}
	cmd, err := start(path, c.command, lock)
	if err != nil {
		return cannotRun(err)
	}
	return supervise(cmd, lock, c.grace, signals)
}

func cannotRun(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitCannotRun, err}
}

// catchSignals keeps the signals that are passed on from ending lockrun. One that is ignored, as nohup has SIGHUP,
// stays ignored.
func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	return signals
}

// interruptible runs obtain with a context that ends when a signal arrives.
func interruptible(signals <-chan os.Signal, obtain func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = obtain(ctx)
	}()
	select {
	case <-done:
		if err != nil {
			return &exitError{exitNotObtained, err}
		}
		return nil
	case sig := <-signals:
		cancel()
		<-done // what it may have obtained is given back at the end of the session
		return &exitError{signalCode(sig), fmt.Errorf("%s while waiting", sig)}
	}
}

func signalCode(sig os.Signal) int {
	// On Unix every signal is one of syscall's.
	return exitSignal + int(sig.(syscall.Signal))
}

// closeSession revokes the lease, which takes a place in the queue and the lock's key with it.
func closeSession(s *lease.Session, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lockrun:", err)
	}
}
