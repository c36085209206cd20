package lease

import (
	"context"
	"time"
)

// watchDeadline ends the lease at its deadline, whatever becomes of the renewals: nothing in its goroutine waits for the
// network or for what the caller supplies. It has the session's alarm, so it wakes the renewals too when one is due.
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

// untilLook is the time until the clocks are to be looked at: until a renewal is due, and then until the deadline.
func (g *grant) untilLook() time.Duration {
	left := g.remaining()
	if due := g.untilRenewal(); due > 0 {
		return min(due, left)
	}
	return left
}

// poke sends on a channel of capacity 1, unless there is something in it.
func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
