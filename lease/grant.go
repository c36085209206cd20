package lease

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/commit"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// grant is one etcd lease of a session, from its grant to its loss. A lost grant never comes back.
type grant struct {
	s       *Session
	id      clientv3.LeaseID
	ttl     time.Duration // granted by the server
	margin  time.Duration
	adopted bool // somebody else's lease: not revoked by us, and perhaps renewed by others too
	queue   *queue.Queue
	turns   turns
	keys    keys
	guards  queue.Guards
	inquest inquest
	reaper  reaper
	log     *slog.Logger

	// handles is the parent of every handle's context; it ends at the loss or when the session is closed.
	handles    context.Context //nolint:containedctx // the life of the handles, not of a call
	endHandles context.CancelCauseFunc
	gone       chan struct{} // closed at the loss
	looking    atomic.Bool   // whether revisions went back
	reclaiming atomic.Bool

	mu       sync.Mutex    // guards the fields below
	sent     clock.Instant // when the last acknowledged renewal was sent
	jeopardy bool
	failure  error              // of the last attempt to renew since then
	cause    *LostError         // of the loss
	held     map[*Lock]struct{} // on an adopted lease only, whose end Close must bring about key by key
}

// newGrant starts the life of a lease that the server granted, or renewed, for a request sent at sent.
func (s *Session) newGrant(id clientv3.LeaseID, ttl time.Duration, sent clock.Instant, adopted bool) *grant {
	g := &grant{
		s: s, id: id, ttl: ttl, margin: s.opts.margin(ttl), adopted: adopted, sent: sent,
		gone: make(chan struct{}),
		log:  s.opts.Logger, // without the lease's ID, which is never logged
	}
	g.handles, g.endHandles = context.WithCancelCause(context.Background())
	attempt := attemptBound(ttl)
	g.queue = &queue.Queue{
		Client: s.client,
		Line: commit.NewLine(s.client, commit.Options{
			Separate: s.opts.SeparateCommits, Bound: attempt, Spawn: s.spawn,
			Highest: s.history.highest.Load,
			Saw:     func(before, rev int64) { _ = s.saw(before, rev) }, // which ends what the answer is for
		}),
		Streams: queue.StreamsOf(s.client, attempt),
		Attempt: attempt,
		Report:  s.reportStray,
	}
	g.guards.Queue, g.guards.Life, g.guards.Spawn = g.queue, g.handles, s.spawn
	g.guards.Warn = func(err error) { g.log.Warn("the key of a lock is not watched", "err", err) }
	g.reaper.g = g
	return g
}

// attemptBound is how long the first attempt of an acquisition or a release may take before the request is sent
// again, to another endpoint where there is one: a quarter of the TTL, within half a second and five seconds. It is
// not a third, as renewals are: in step with them each retry would meet the same endpoint again.
func attemptBound(ttl time.Duration) time.Duration {
	return min(max(ttl/4, 500*time.Millisecond), 5*time.Second)
}

// remaining is the time to the deadline. It is counted from when the renewal was sent: when the server began to
// count is unknown, but it was not before that.
func (g *grant) remaining() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remainingLocked()
}

func (g *grant) remainingLocked() time.Duration {
	return g.ttl - g.margin - g.s.clock.Since(g.sent)
}

// checkDeadline reports whether the lease is still valid, and ends it if its deadline has passed. It does not
// rely on a timer having fired: a process that wakes up after a pause may come here first.
func (g *grant) checkDeadline() bool {
	g.mu.Lock()
	lost, left, failure := g.cause != nil, g.remainingLocked(), g.failure
	g.mu.Unlock()
	if !lost && left <= 0 {
		g.lose(&LostError{Reason: DeadlinePassed, LeaseID: g.id, Err: failure})
	}
	return !lost && left > 0
}

// expired reports whether the server has dropped the lease, and every key on it, for certain. After a leader
// change it keeps one for up to twice the TTL. An adopted lease may be renewed by its owner for ever.
func (g *grant) expired() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.cause == nil:
		return false
	case g.cause.Reason == LeaseGone:
		return true
	}
	return !g.adopted && g.s.clock.Since(g.sent) > 3*g.ttl
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
	if cause.Reason != SessionClosed {
		g.log.Error("lease lost", "reason", cause.Reason.String(), "err", cause.Err)
	}
	g.s.notify()
}

// extend takes a renewal that was sent at sent and has been acknowledged. A lease past its deadline stays lost,
// however good the news.
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
	if changed {
		g.log.Info("lease held again")
		g.s.notify()
	}
}

// endanger marks a renewal as overdue. The endpoint that did not answer it may be the one that serves the
// watches, and a cut-off endpoint's watches are silent: they are opened anew.
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
	g.queue.Streams.Suspect()
	g.log.Warn("lease in jeopardy: a renewal is overdue", "err", failure)
	g.s.notify()
}

// note keeps why there is no connection, for the loss that may come of it: a renewal waits for one, and does not fail.
func (g *grant) note(why error) {
	if why == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = retry.Better(g.failure, why)
}

func (g *grant) status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := Status{
		State:    Held,
		LeaseID:  g.id,
		TTL:      g.ttl,
		Deadline: g.s.clock.After(g.sent, g.ttl-g.margin),
	}
	switch {
	case g.cause != nil:
		st.State, st.Err = Lost, g.cause
	case g.remainingLocked() <= 0:
		st.State, st.Err = Lost, &LostError{Reason: DeadlinePassed, LeaseID: g.id, Err: g.failure}
	case g.jeopardy:
		st.State, st.Err = Jeopardy, g.failure
	}
	return st
}

// remember and forget keep the list of handles on an adopted lease, which remembered returns.
func (g *grant) remember(l *Lock) {
	if !g.adopted {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = make(map[*Lock]struct{})
	}
	g.held[l] = struct{}{}
}

func (g *grant) forget(l *Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, l)
}

func (g *grant) remembered() []*Lock {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.held))
}
