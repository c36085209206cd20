package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/retry"
)

// renewal is the outcome of one attempt to renew. The attempts of one round stand for one renewal.
type renewal struct {
	round int
	sent  clock.Instant
	rev   int64 // that the member which was asked had seen by then; 0 without an answer
	err   error
}

// renew keeps the lease alive until it is lost or ctx ends. The deadline is watched here and never waits for the
// network: the attempts run beside it.
//
// A renewal is due a third of the TTL after the last acknowledged one was sent. An attempt that fails is
// repeated after a pause with jitter. While none is answered, each tenth of the TTL more are sent beside them, one more
// each time: the client takes its endpoints in turn, but for all requests alike, so that of two attempts with others'
// requests between them the second may meet the same sick endpoint as the first. None is taken back, because an answer
// that is late but within the deadline is as good as any: its own send time counts. "Lease not found" is final at once.
func (g *grant) renew(ctx context.Context) {
	results := make(chan renewal)
	var running sync.WaitGroup
	defer running.Wait()
	round := 1
	var attempts []context.CancelFunc // of the round
	waiting, beside := 0, 0           // for an answer; that are sent beside those
	end := func() {
		for _, cancel := range attempts {
			cancel()
		}
		attempts, waiting, beside = nil, 0, 0
	}
	defer end()

	look := g.s.clock.NewTimer(g.untilLook())
	defer look.Stop()
	next := time.NewTimer(g.untilRenewal())
	defer next.Stop()

	var backoff retry.Backoff
	troubled := false // since the last success
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.gone:
			return
		case <-look.C:
			if g.checkDeadline() {
				if len(attempts) == 0 {
					next.Reset(g.untilRenewal()) // it may have stood still
				}
				look.Reset(g.untilLook())
			}
		case <-next.C:
			if !g.checkDeadline() { // the host may have been suspended, and the timer with it
				return
			}
			if len(attempts) > 0 {
				g.endanger(nil)
			}
			if waiting > 0 {
				beside++
			}
			for range 1 + beside {
				attempts = append(attempts, g.attempt(ctx, &running, round, results))
				waiting++
			}
			next.Reset(g.patience())
		case r := <-results:
			switch {
			case r.round != round: // its round has been answered
			case r.err == nil:
				g.extend(r.sent)
				g.suspect(r.rev)
				if troubled || len(attempts) > 1 {
					g.reclaim()
				}
				troubled = false
				end()
				round++
				backoff.Reset()
				look.Reset(g.untilLook())
				next.Reset(g.untilRenewal())
			case errors.Is(r.err, rpctypes.ErrLeaseNotFound):
				g.lose(&LostError{Reason: LeaseGone, LeaseID: g.id})
			default:
				g.endanger(r.err)
				troubled = true
				waiting--
				next.Reset(min(backoff.Next(), g.patience()))
			}
		}
	}
}

// attempt sends one renewal in a goroutine of its own, which ends with ctx or by cancel.
func (g *grant) attempt(ctx context.Context, running *sync.WaitGroup, round int, results chan<- renewal) (cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(ctx)
	running.Go(func() {
		g.note(retry.Unreachable(ctx, g.s.client))
		retry.Reconnect(g.s.client)
		sent := g.s.clock.Now()
		resp, err := retry.KeepAlive(ctx, g.s.client, g.id)
		r := renewal{round: round, sent: sent, err: err}
		if err == nil {
			r.rev = resp.GetRevision()
		}
		select {
		case results <- r:
		case <-ctx.Done():
		}
	})
	return cancel
}

// untilLook is the time until the clocks are to be looked at: until a renewal is due, and then until the deadline.
func (g *grant) untilLook() time.Duration {
	left := g.remaining()
	if due := g.untilRenewal(); due > 0 {
		return min(due, left)
	}
	return left
}

// untilRenewal is the time until a third of the TTL has gone since the last acknowledged renewal was sent.
func (g *grant) untilRenewal() time.Duration {
	return g.remaining() + g.margin - 2*g.ttl/3
}

// patience is how long an attempt is waited for before another is sent beside it: a tenth of the TTL, less a
// random part so that many sessions do not move in step.
func (g *grant) patience() time.Duration {
	return g.ttl/10 - rand.N(g.ttl/50)
}
