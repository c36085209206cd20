package lease

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// grant is one etcd lease of a session, from its grant to its loss. A lost grant never comes back.
type grant struct {
	s         *Session
	id        clientv3.LeaseID
	ttl       time.Duration // granted by the server
	margin    time.Duration
	adopted   bool // somebody else's lease: we do not revoke it, and others may renew it
	queue     *queue.Queue
	turns     turns
	keys      keys
	guards    queue.Guards
	lossCheck lossCheck
	reaper    reaper

	// handles is the parent of every handle's context; it ends at the loss or when the session is closed.
	handles    context.Context //nolint:containedctx // the life of the handles, not of a call
	endHandles context.CancelCauseFunc
	gone       chan struct{} // closed at the loss
	renewed    chan struct{} // of capacity 1: the deadline has moved
	look       chan struct{} // of capacity 1: a renewal may be due by the clock
	looking    atomic.Bool   // suspect checks whether revisions went back
	reclaiming atomic.Bool
	probing    atomic.Bool
	probed     int64       // the highest revision that was known at the last probe
	served     atomic.Bool // a lock was held on it
	abandoned  atomic.Bool // the server still has it, see spoilt

	mu       sync.Mutex    // guards the fields below
	sent     clock.Instant // when the last acknowledged renewal was sent
	jeopardy bool
	failure  error      // the last failure to renew since then
	cause    *LostError // why it was lost; nil until then
}

// newGrant starts the life of a lease that the server granted, or renewed, for a request sent at sent.
func (s *Session) newGrant(id clientv3.LeaseID, ttl time.Duration, sent clock.Instant, adopted bool) *grant {
	g := &grant{
		s: s, id: id, ttl: ttl, margin: s.opts.margin(ttl), adopted: adopted, sent: sent,
		gone: make(chan struct{}), renewed: make(chan struct{}, 1), look: make(chan struct{}, 1),
	}
	g.handles, g.endHandles = context.WithCancelCause(context.Background())
	attempt := etcd.AttemptBound(ttl)
	g.queue = &queue.Queue{
		Life: g.handles,
		Conn: s.conn,
		Line: etcd.NewLine(s.conn, etcd.LineOptions{
			Bound: attempt, Spawn: s.spawn,
			Highest: s.revisions.Highest,
			Saw:     func(before, rev int64) { _ = s.saw(before, rev) }, // an error has already ended the handles
		}),
		Bound:  attempt,
		Report: s.reportStrays,
	}
	g.guards.Queue, g.guards.Spawn = g.queue, s.spawn
	g.guards.Every = ttl / 3
	g.guards.Warn = func(err error) { g.s.log.Warn("the key of a lock is not watched", "err", err) }
	g.turns.order = make(map[string][]*contender)
	g.reaper.g, g.reaper.orphans, g.reaper.wake = g, make(map[string]*orphan), make(chan struct{}, 1)
	return g
}

// do is [etcd.Conn.Do] for a request about the lease.
func (g *grant) do(ctx context.Context, do func(*etcd.Attempt) error) error {
	return g.s.conn.Do(ctx, g.queue.Bound, do)
}

// while is [etcd.Conn.While], for as long as the handles live.
func (g *grant) while(ctx context.Context, do func(*etcd.Attempt) error) (late bool, err error) {
	return g.s.conn.While(ctx, g.handles, g.queue.Bound, do)
}

// releaseBound bounds a release without a caller's context. It has room for a second attempt, at another endpoint.
// Together with the bound of Close it stays well below the 30 s that Kubernetes gives a process to end.
func releaseBound(ttl time.Duration) time.Duration {
	return min(3*etcd.AttemptBound(ttl), 8*time.Second)
}

// remaining is the time to the deadline. It counts from when the renewal was sent: the server started the TTL at an
// unknown time, but not before that.
func (g *grant) remaining() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remainingLocked()
}

func (g *grant) remainingLocked() time.Duration {
	return g.ttl - g.margin - g.s.clock.Since(g.sent)
}

func (g *grant) lastSent() clock.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sent
}

// checkDeadline reports whether the lease is still valid, and ends it if its deadline has passed. It does not rely on a
// timer: after a pause, a process may come here before its timers fire.
func (g *grant) checkDeadline() bool {
	g.mu.Lock()
	lost, left, failure := g.cause != nil, g.remainingLocked(), g.failure
	g.mu.Unlock()
	if !lost && left <= 0 {
		g.lose(&LostError{Reason: ReasonDeadlinePassed, LeaseID: g.id, Err: failure})
	}
	return !lost && left > 0
}

// expired reports whether the server has certainly dropped the lease with all its keys. After a leader change the
// server keeps a lease for up to twice the TTL. The owner of an adopted lease may renew it indefinitely.
func (g *grant) expired() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.cause == nil:
		return false
	case g.cause.Reason == ReasonLeaseGone && !g.abandoned.Load():
		return true
	}
	return !g.adopted && g.s.clock.Since(g.sent)/3 > g.ttl // three TTLs may overflow
}

// lose ends the lease, and with it every handle, unless it has ended already.
func (g *grant) lose(cause *LostError) {
	g.mu.Lock()
	first := g.cause == nil
	if first {
		g.cause = cause
		g.endHandles(cause) // under mu: whoever finds the lease lost finds the handles ended
	}
	g.mu.Unlock()
	if !first {
		return
	}
	close(g.gone)
	if cause.Reason != ReasonSessionClosed {
		g.s.log.Error("lease lost", "reason", cause.Reason.String(), because(cause.Err))
	}
	g.s.notify()
}

// because is the attribute of an error, none if there is no error: a server that is cut off gives none.
func because(err error) (none slog.Attr) {
	if err == nil {
		return none
	}
	return slog.Any("err", err)
}

// extend records that a renewal sent at sent was acknowledged. A lease whose deadline has passed stays lost.
func (g *grant) extend(sent clock.Instant) {
	if !g.checkDeadline() {
		return
	}
	g.mu.Lock()
	if sent.Later(g.sent) {
		g.sent = sent
	}
	changed := g.jeopardy
	g.jeopardy, g.failure = false, nil
	g.mu.Unlock()
	poke(g.renewed)
	if changed {
		g.s.log.Info("lease held again")
		g.s.notify()
	}
}

// endanger marks a renewal as overdue.
func (g *grant) endanger(failure error) {
	g.mu.Lock()
	changed := !g.jeopardy
	g.jeopardy = true
	if failure != nil {
		g.failure = failure
	}
	g.mu.Unlock()
	if !changed {
		return
	}
	g.s.log.Warn("lease in jeopardy: a renewal is overdue", because(failure))
	g.s.notify()
}

// note records why there is no connection, for a later loss to report: a renewal waits for a connection and does not
// fail.
func (g *grant) note(why error) {
	if why == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = etcd.Better(g.failure, why)
}

func (g *grant) status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := Status{
		State:    StateHeld,
		LeaseID:  g.id,
		TTL:      g.ttl,
		Deadline: g.s.clock.After(g.sent, g.ttl-g.margin),
	}
	switch {
	case g.cause != nil:
		st.State, st.Err = StateLost, g.cause
	case g.remainingLocked() <= 0:
		st.State, st.Err = StateLost, &LostError{Reason: ReasonDeadlinePassed, LeaseID: g.id, Err: g.failure}
	case g.jeopardy:
		st.State, st.Err = StateJeopardy, g.failure
	}
	return st
}

// watchDeadline ends the lease at its deadline, whatever happens to the renewals: its goroutine never waits for the
// network or for code of the caller. It has the only timer on the session's clock, so it also wakes renew when a
// renewal is due.
func (g *grant) watchDeadline(ctx context.Context) {
	look := g.s.clock.NewTimer(g.untilLook())
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.gone:
			return
		case <-g.renewed:
		case <-look.C:
			if !g.checkDeadline() {
				return
			}
			poke(g.look)
		}
		look.Reset(g.untilLook())
	}
}

// untilLook is the time until the next check of the clock: until a renewal is due, and after that until the deadline.
func (g *grant) untilLook() time.Duration {
	left := g.remaining()
	if due := g.untilRenewal(); due > 0 {
		return min(due, left)
	}
	return left
}

// poke sends on a channel of capacity 1 unless it is full.
func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
