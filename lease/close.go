package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// Close ends the session: every handle's context is cancelled (the cause matches [ErrClosed]), acquisitions that
// wait fail with ErrClosed, functions running under [Session.Do] are waited for, the lease is revoked, and with
// it every key of the session is deleted. It waits for all goroutines of the session. Where there are a thousand keys or more, most are
// deleted in batches before that: etcd serves nobody else while it deletes all the keys of a lease.
//
// Close is bounded by ctx, and by a second more where something in the caller's client does not heed it. For lines of the log
// that are not written yet it waits a tenth of a second. If ctx ends, or the server cannot be reached, renewals stop all the same and the
// lease's TTL cleans up the rest; the error says so. In particular the lease is not
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

	g.endHandles(&LostError{Reason: ReasonSessionClosed, LeaseID: g.id})
	go s.finish(ctx, g)
	select {
	case <-s.closed:
		return s.closeErr
	case <-ctx.Done():
	}
	// All that is under way ends with ctx, but an interceptor, say, in the caller's client may not heed it.
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

// finish is Close from when no call may begin any more.
func (s *Session) finish(ctx context.Context, g *grant) {
	err := s.release(ctx, g)

	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait() // not for long: every request of theirs ended with s.run
	g.lose(&LostError{Reason: ReasonSessionClosed, LeaseID: g.id})
	for _, g := range append(s.earlier, g) { // nobody changes it any more
		g.reaper.giveUp()
	}
	switch {
	case err == nil:
	case g.adopted:
		err = fmt.Errorf("lease: close: %w; what is left goes with lease %x", err, int64(g.id))
	default:
		err = fmt.Errorf("lease: close: %w; lease %x expires by itself", err, int64(g.id))
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	s.logs.Flush(ctx) // the last lines
	s.events.Flush(ctx)
	s.states.Flush(ctx)
	cancel()
	s.closeErr = err
	close(s.closed)
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
	// So may an earlier lease live on at the server, with the keys of locks that were lost and not unlocked.
	s.mu.Lock()
	leases := append(slices.Clone(s.earlier), g)
	s.mu.Unlock()
	for _, g := range leases {
		if !g.adopted {
			err = errors.Join(err, s.revoke(ctx, g))
		}
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
	if err := errors.Join(g.deleteKeys(ctx, g.keys.inUse()), g.reaper.flush(ctx)); err != nil {
		return fmt.Errorf("remove the keys on adopted lease %x: %w", int64(g.id), err)
	}
	return nil
}

// boundByTTL is ctx, but no longer than the lease itself can last, or than a few attempts if it is lost; and no longer than
// 10 s, since what is not deleted by then expires soon.
func (g *grant) boundByTTL(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(max(g.remaining()+g.margin, 3*g.queue.Bound), 10*time.Second))
}

func (s *Session) revoke(ctx context.Context, g *grant) error {
	if g.expired() {
		return nil
	}
	ctx, cancel := g.boundByTTL(ctx)
	defer cancel()
	if keys := g.keys.inUse(); len(keys) >= fewKeys {
		end, _ := ctx.Deadline()
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		_ = g.deleteKeys(half, keys) // what is not deleted by then, or is refused, goes with the lease; so does a key that comes late
		cancel()
	}
	err := g.do(ctx, func(a *etcd.Attempt) error {
		_, err := etcd.Send(a, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
			return s.conn.Client.Revoke(ctx, g.id)
		})
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

// fewKeys is how many keys make a lease great: with fewer it is revoked as it is. Etcd deletes those of a revoked one in a
// single step, 50,000 in 0.3 s, and commits nothing else meanwhile. One transaction after the other leaves room for others'.
const fewKeys = 1000

// deleteKeys deletes keys, each if it is attached to the lease: it may be sent twice.
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
