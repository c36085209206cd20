package lease

import (
	"context"
	"time"
)

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
