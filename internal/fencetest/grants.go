package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// holder is a grant of a read/write lock.
type holder struct {
	token fence.Token
	reads bool
	live  bool
	calls int
	claim int // the number of the call that claims first
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

// Grants plays random histories of a read/write lock against the marks of a store: readers call ClaimRead and CheckRead,
// writers Claim and checks, verbs that raise a lower mark. No live holder is refused. A writer is refused once the
// resource has accepted a newer holder, a reader once it has accepted a newer writer, and nobody else.
func Grants(t *testing.T, verbs map[string]Verb, checks ...string) {
	t.Helper()
	random, seed := seeded(t)
	tally := map[string]int{}
	rounds := fromEnv(t, roundsEnv, 10)
	const outcomes = 4 // which so few rounds may not all have
	for round := uint64(0); round < rounds || len(tally) < outcomes && round < 10*rounds; round++ {
		g, resource, marks := &grants{Rand: random}, fmt.Sprintf("grants %x %d", seed, resources.Add(1)), Marks{}
		// Start near another digit: a store that compares tokens as text is wrong there.
		g.queue([]fence.Token{0, 90, 999_990}[g.IntN(3)])
		for range 30 {
			by := g.next()
			claims := by.calls == by.claim || by.calls > by.claim && g.IntN(4) == 0 // a claim may be repeated
			by.calls++
			name := checks[g.IntN(len(checks))]
			switch {
			case by.reads && claims:
				name = "ClaimRead"
			case by.reads:
				name = "CheckRead"
			case claims:
				name = "Claim"
			}
			err := verbs[name].Call(Verb{Reads: by.reads}.Context(t.Context(), by.token), resource)
			g.log = append(g.log, fmt.Sprintf("%+v: %v", *by, err))
			var want error
			marks, want = marks.After(Verb{Reads: by.reads}, by.token, "", false)
			RequireRefusal(t, want, err, "", fmt.Sprint(g.log))
			require.False(t, by.live && err != nil, "live and refused: %v", g.log)
			tally[fmt.Sprintf("readers %t, accepted %t", by.reads, err == nil)]++
		}
	}
	t.Log(tally)
	require.Len(t, tally, outcomes)
}

// Tree has the verbs for nodes of a tree of resources.
type Tree struct {
	Claim, Check func(ctx context.Context, path string) error // Check is only called after Claim
	Marks        func() any                                   // all marks
}

// Paths plays histories of trees, which start makes, with the given number of holders each. Holders of nodes are
// granted one after the other, and older ones act late. A holder is refused if and only if a newer holder of its node,
// or of a node above or below it, was accepted.
func Paths(t *testing.T, histories, holders int, start func() Tree) {
	t.Helper()
	random, _ := seeded(t)
	paths := []string{"a", "a/b", "a/c", "a/b/d", "a/b/e", "a/bb", "b"}
	related := func(p, q string) bool {
		return strings.HasPrefix(p+"/", q+"/") || strings.HasPrefix(q+"/", p+"/")
	}
	for range histories {
		tree := start()
		held, been := map[fence.Token]string{}, map[fence.Token]bool{}
		for token := fence.Token(1); token <= fence.Token(holders); token++ {
			held[token] = paths[random.IntN(len(paths))]
			for range 3 {
				who := 1 + fence.Token(random.Int64N(int64(token)))
				newest := fence.Token(0)
				for other := range been {
					if related(held[other], held[who]) {
						newest = max(newest, other)
					}
				}
				verb, before := tree.Claim, tree.Marks()
				if been[who] && random.IntN(2) == 0 {
					verb = tree.Check
				}
				err := verb(fence.NewContext(t.Context(), who), held[who])
				if newest <= who {
					require.NoError(t, err, "%d at %s", who, held[who])
					been[who] = true
					continue
				}
				stale, ok := errors.AsType[*fence.StaleError](err)
				require.True(t, ok, "%d at %s passed %d at %s: %v", who, held[who], newest, held[newest], err)
				require.Equal(t, who, stale.Token)
				require.False(t, stale.Read)
				require.True(t, related(stale.Resource, held[who]))
				require.Equal(t, before, tree.Marks(), "nothing is raised")
			}
		}
	}
}
