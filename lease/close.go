package lease

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/retry"
)

// Close ends the session: every handle's context is cancelled (the cause matches [ErrClosed]), acquisitions that
// wait fail with ErrClosed, functions running under [Session.Do] are waited for, the lease is revoked, and with
// it every key of the session is deleted in one step. It waits for all goroutines of the session.
//
// Close is bounded by ctx. If ctx ends, or the server cannot be reached, renewals stop all the same and the
// lease's TTL cleans up what the server could not be told; the error says so. In particular the lease is not
// revoked under a function that is still running. Calling Close again waits for the first call and returns
// what it returned.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return s.awaitClosed(ctx)
	}
	s.closing = true
	close(s.ending)
	g := s.grant
	s.idle = make(chan struct{})
	if s.scopes == 0 {
		close(s.idle)
	}
	s.mu.Unlock()

	g.endHandles(&LostError{Reason: SessionClosed, LeaseID: g.id})
	err := s.release(ctx, g)

	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait() // not for long: every request of theirs ended with s.run
	g.lose(&LostError{Reason: SessionClosed, LeaseID: g.id})
	switch {
	case err == nil:
	case g.adopted:
		err = fmt.Errorf("lease: close: %w; what is left goes with lease %x", err, int64(g.id))
	default:
		err = fmt.Errorf("lease: close: %w; lease %x expires by itself", err, int64(g.id))
	}
	s.closeErr = err
	close(s.closed)
	return err
}

// awaitClosed waits for the end of a Close that is under way. One that has ended says so whatever ctx is.
func (s *Session) awaitClosed(ctx context.Context) error {
	if !s.isClosed() {
		select {
		case <-s.closed:
		case <-ctx.Done():
			return fmt.Errorf("lease: close: %w", context.Cause(ctx))
		}
	}
	return s.closeErr
}

// release waits until no acquisition waits and no function runs under Do, and takes everything of the session off the server.
func (s *Session) release(ctx context.Context, g *grant) error {
	select {
	case <-s.idle:
	case <-ctx.Done():
		return fmt.Errorf("functions under Do are still running: %w", context.Cause(ctx))
	}
	// The adopted lease may be lost to us and yet renewed by its owner: nobody else takes our keys off it.
	err := s.adopted.releaseKeys(ctx)
	if !g.adopted {
		err = errors.Join(err, s.revoke(ctx, g))
	}
	return err
}

// releaseKeys takes our keys off an adopted lease. On nil it does nothing.
func (g *grant) releaseKeys(ctx context.Context) error {
	if g == nil || g.expired() {
		return nil
	}
	ctx, cancel := g.boundByTTL(ctx)
	defer cancel()
	for _, l := range g.remembered() {
		l.clear()
	}
	if err := g.reaper.flush(ctx); err != nil {
		return fmt.Errorf("remove the keys on adopted lease %x: %w", int64(g.id), err)
	}
	return nil
}

// boundByTTL is ctx, but no longer than the lease itself can last, or than a few attempts if it is lost.
func (g *grant) boundByTTL(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(g.remaining()+g.margin, 3*g.queue.Attempt))
}

// revoke ends a lease of our own.
func (s *Session) revoke(ctx context.Context, g *grant) error {
	if g.expired() {
		return nil
	}
	ctx, cancel := g.boundByTTL(ctx)
	defer cancel()
	err := retry.Do(ctx, s.client, g.queue.Attempt, func(ctx context.Context) error {
		_, err := retry.Send(ctx, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) { return s.client.Revoke(ctx, g.id) })
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it may have been an attempt whose answer was lost
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	return nil
}

// enterScope counts an acquisition, or a function under Do, that is about to begin; it reports false if the session is closing.
func (s *Session) enterScope() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.scopes++
	return true
}

func (s *Session) leaveScope() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scopes--
	if s.closing && s.scopes == 0 {
		close(s.idle)
	}
}
