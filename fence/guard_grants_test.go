package fence_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// holder is a grant of a read/write lock.
type holder struct {
	token fence.Token
	reads bool
	live  bool
	calls int
	claim int // the number of the call that claims first
}

// context returns the holder's context.
func (h *holder) context(ctx context.Context) context.Context {
	return fencetest.Verb{Reads: h.reads}.Context(ctx, h.token)
}

// grants is a history of one read/write lock. The lock is strictly first in, first out: readers do not pass a waiting
// writer. Holders unlock, or lose the lock while they are paused and act later. Each claims early, late or never.
type grants struct {
	*rand.Rand

	waiting *holder   // the first in the queue
	holders []*holder // live and paused ones, from the oldest to the newest
	log     []string
}

// queue creates the next holder in the queue, with a token above the given one.
func (g *grants) queue(after fence.Token) {
	g.waiting = &holder{
		token: after + 1 + fence.Token(g.IntN(3)),
		reads: g.IntN(2) == 0,
		claim: []int{0, g.IntN(4), math.MaxInt}[g.IntN(3)], // early, late, never
	}
}

// next lets the lock change hands until a holder acts, and returns it.
func (g *grants) next() *holder {
	for {
		switch at := g.IntN(len(g.holders) + 1); {
		case at == len(g.holders) || g.IntN(3) == 0:
			g.grant()
		case g.holders[at].live && g.IntN(4) == 0:
			g.log = append(g.log, fmt.Sprintf("%+v ends", *g.holders[at]))
			g.holders[at].live = false
			if g.IntN(3) == 0 { // it has unlocked and does not act later
				g.holders = slices.Delete(g.holders, at, at+1)
			}
		default:
			return g.holders[at]
		}
	}
}

// grant grants the lock to the first in the queue, if no live holder is in its way.
func (g *grants) grant() {
	for _, other := range g.holders {
		if other.live && (!other.reads || !g.waiting.reads) {
			return
		}
	}
	g.waiting.live = true
	g.log = append(g.log, fmt.Sprintf("granted to %+v", *g.waiting))
	g.holders = append(g.holders, g.waiting)
	if oldest := slices.IndexFunc(g.holders, func(h *holder) bool { return !h.live }); oldest >= 0 && len(g.holders) > 5 {
		g.holders = slices.Delete(g.holders, oldest, oldest+1)
	}
	g.queue(g.waiting.token)
}

// In histories of a read/write lock no live holder is refused. A writer is refused once the resource has accepted a
// newer holder, a reader once it has accepted a newer writer, and nobody else. Other stores decide each call by the same
// rule; see fencetest.Rules.
func TestGuard_grants(t *testing.T) {
	var guard fence.Guard
	seed := fencetest.FromEnv(t, fencetest.SeedEnv, rand.Uint64()>>1)
	t.Logf("to repeat it: %s=%d", fencetest.SeedEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	do := func(ctx context.Context, resource string, token fence.Token) error {
		return guard.DoContext(ctx, resource, token, func() error { return nil })
	}
	tally := map[string]int{}
	for history := range fencetest.FromEnv(t, fencetest.RoundsEnv, 100) {
		g, resource, marks := &grants{Rand: random}, fmt.Sprint("resource ", history), fencetest.Marks{}
		// Start near another digit: a store that compares tokens as text is wrong there.
		g.queue([]fence.Token{0, 90, 999_990}[g.IntN(3)])
		for range 30 {
			by := g.next()
			claims := by.calls == by.claim || by.calls > by.claim && g.IntN(4) == 0 // a claim may be repeated
			by.calls++
			verb := writing(do)
			switch {
			case by.reads && claims:
				verb = reading(bare(guard.ClaimRead))
			case by.reads:
				verb = reading(guard.CheckReadContext)
			case claims:
				verb = writing(bare(guard.Claim))
			case g.IntN(2) == 0:
				verb = writing(guard.CheckContext)
			}
			err := verb(by.context(t.Context()), resource)
			g.log = append(g.log, fmt.Sprintf("%+v: %v", *by, err))
			var want error
			marks, want = marks.After(fencetest.Verb{Reads: by.reads}, by.token, "", false)
			fencetest.RequireRefusal(t, want, err, resource, fmt.Sprint(g.log))
			require.False(t, by.live && err != nil, "live and refused: %v", g.log)
			tally[fmt.Sprintf("readers %t, accepted %t", by.reads, err == nil)]++
		}
	}
	t.Log(tally)
	require.Len(t, tally, 4)
}
