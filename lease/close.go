package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// Close ends the session. It cancels every handle's context (the cause matches [ErrClosed]), fails waiting acquisitions
// with ErrClosed, waits for functions running under [Session.Do], and revokes the lease, which deletes every key of the
// session. It waits for all goroutines of the session. A session with 1,000 keys or more deletes most of them in
// batches before it revokes the lease: etcd serves nobody else while it deletes the keys of a revoked lease.
//
// Ctx bounds Close, plus one second if something in the caller's client ignores its context. Close waits up to a tenth
// of a second for log lines that are not written yet. If ctx ends, or etcd has not confirmed the revocation
// within 10 s at most, renewals stop all the same and the lease's TTL cleans up the rest; the error says so. In
// particular the lease is not revoked under a function that is still running. If etcd refuses to revoke the lease, as
// when somebody else has attached a key to it, Close deletes the session's keys and returns the refusal. Calling Close
// again waits for the first call and returns its result.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		if !awaitClosed(ctx, s.closed) {
			return fmt.Errorf("lease: close: %w", context.Cause(ctx))
		}
		return s.closeErr
	}
	s.closing = true
	close(s.ending)
	g := s.grant
	s.idle = make(chan struct{})
	if s.scopes == 0 {
		close(s.idle)
	}
	s.mu.Unlock()

	g.endHandles(&LostError{Reason: ReasonSessionClosed, LeaseID: g.id})
	go s.finish(ctx, g)
	if awaitClosed(ctx, s.closed) {
		return s.closeErr
	}
	// Every request ends with ctx, but something in the caller's client, such as an interceptor, may ignore its
	// context.
	late := time.NewTimer(time.Second)
	defer late.Stop()
	select {
	case <-s.closed:
		return s.closeErr
	case <-late.C:
		s.stop()
		return fmt.Errorf("lease: close: %w; a request does not end with its context", context.Cause(ctx))
	}
}

// finish is the rest of Close, once no call may begin any more.
func (s *Session) finish(ctx context.Context, g *grant) {
	err := s.release(ctx, g)

	s.mu.Lock()
	s.stop() // no goroutine is started after this
	s.mu.Unlock()
	s.wg.Wait() // short: the end of s.run has ended all their requests
	g.lose(&LostError{Reason: ReasonSessionClosed, LeaseID: g.id})
	if err != nil {
		err = fmt.Errorf("lease: close: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	s.logs.Flush(ctx) // the last lines
	s.events.Flush(ctx)
	s.states.Flush(ctx)
	cancel()
	s.closeErr = err
	close(s.closed)
}

// awaitClosed waits until ch is closed or ctx ends, and reports whether ch is closed.
func awaitClosed(ctx context.Context, ch <-chan struct{}) bool {
	select {
	case <-ch:
	case <-ctx.Done():
	}
	select {
	case <-ch: // even if ctx has ended too
		return true
	default:
		return false
	}
}

// release waits until no acquisition waits and no function runs under Do, and then removes everything of the session
// from the server.
func (s *Session) release(ctx context.Context, g *grant) error {
	if !awaitClosed(ctx, s.idle) {
		return g.leaves(fmt.Errorf("acquisitions, or functions under Do or Run, have not ended: %w", context.Cause(ctx)))
	}
	// The server may still have earlier leases, with the keys of locks that were lost and not unlocked. These leases expire
	// sooner, so they come after the present one.
	s.mu.Lock()
	leases := append([]*grant{g}, s.earlier...)
	s.mu.Unlock()
	// For the remaining life of the lease or, if that is lost, for a few attempts; and for 10 s at most, because what is not
	// deleted by then expires soon.
	ctx, cancel := context.WithTimeout(ctx, min(max(g.remaining()+g.margin, 3*g.queue.Bound), 10*time.Second))
	defer cancel()
	var errs []error
	for _, g := range leases {
		errs = append(errs, g.giveBack(ctx))
	}
	return errors.Join(errs...)
}

// leaves adds to an error of Close what becomes of the rest.
func (g *grant) leaves(err error) error {
	if g.adopted {
		return fmt.Errorf("%w; the rest will be deleted with lease %x", err, int64(g.id))
	}
	return fmt.Errorf("%w; lease %x expires by itself", err, int64(g.id))
}

// giveBack revokes the lease, which deletes all its keys. An adopted one is not ours: giveBack deletes our keys on it. It
// also does so if etcd refuses to revoke the lease because of another key.
func (g *grant) giveBack(ctx context.Context) error {
	if g.expired() {
		return nil
	}
	keys := g.keys.inUse()
	if g.adopted {
		if err := errors.Join(g.deleteKeys(ctx, keys), g.reaper.flush(ctx)); err != nil {
			return g.leaves(fmt.Errorf("remove the keys on the adopted lease: %w", err))
		}
		return nil
	}
	if len(keys) >= fewKeys {
		end, _ := ctx.Deadline()
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		_ = g.deleteKeys(half, keys) // remaining keys are deleted with the lease
		cancel()
	}
	err := g.do(ctx, func(a *etcd.Attempt) error {
		_, err := etcd.Send(a, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
			return g.s.conn.Client.Revoke(ctx, g.id)
		})
		if errors.Is(err, rpctypes.ErrLeaseNotFound) { // perhaps an earlier attempt revoked it and its answer was lost
			return nil
		}
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		err = fmt.Errorf("%w (revoking a lease requires permission to write every key attached to it)", err)
		_ = g.deleteKeys(ctx, keys) // others need not wait for the end of the lease
	}
	return g.leaves(fmt.Errorf("revoke: %w", err))
}

// fewKeys is from how many keys on their deletion is split up before the lease is revoked. etcd deletes the keys of a
// revoked lease in a single step, 50,000 in 0.3 s, and commits nothing else meanwhile. Separate transactions leave room
// for others.
const fewKeys = 1000

// deleteKeys deletes each of the keys that is attached to the lease. Repeating it is safe.
func (g *grant) deleteKeys(ctx context.Context, keys []string) error {
	_, err := etcd.InParts(keys, etcd.PartSize, math.MaxInt, func(part []string) error {
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			ops[i] = clientv3.OpTxn([]clientv3.Cmp{g.attached(key)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
		}
		return g.commit(ctx, ops)
	})
	return err
}

// enterScope counts an acquisition, or a function under Do, that is about to begin. It reports false if the session is
// closing.
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
