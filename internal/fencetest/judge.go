package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// judge returns an error if the entries at the end prove a fault of the fence.
func (s Store) judge(all []*write, entries []Entry) error {
	there := make(map[Entry]bool, len(entries))
	for i, e := range entries {
		if there[e] {
			return fmt.Errorf("entry %d is there twice", e.ID)
		}
		if s.Ordered && i > 0 && entries[i-1].Token > e.Token {
			return fmt.Errorf("entry %d of token %d comes after one of token %d", e.ID, e.Token, entries[i-1].Token)
		}
		there[e] = true
	}
	for _, w := range all {
		stale, refused := errors.AsType[*fence.StaleError](w.err)
		switch {
		case refused && stale.Highest != 0 && stale.Highest <= stale.Token:
			return fmt.Errorf("entry %d was refused, though its token %d is not below %d", w.ID, stale.Token, stale.Highest)
		case refused && stale.Read != w.reads:
			return fmt.Errorf("entry %d of token %d was refused: %w", w.ID, w.Token, w.err)
		case w.reads && (w.err != nil || w.saw == nil):
			continue
		case w.reads: // a read leaves no entry
		case w.err == nil && !there[w.Entry]:
			return fmt.Errorf("entry %d was acknowledged and is not there", w.ID)
		case errors.Is(w.err, fence.ErrStale) && there[w.Entry] && (s.Unknown == nil || !errors.Is(w.err, s.Unknown)):
			return fmt.Errorf("entry %d was refused and is there", w.ID)
		case !there[w.Entry] || w.saw == nil:
			continue
		}
		for seen := range w.saw {
			if seen.Token > w.Token {
				return fmt.Errorf("the writer of entry %d of token %d had read entry %d of token %d",
					w.ID, w.Token, seen.ID, seen.Token)
			}
		}
		for _, other := range all {
			if err := w.misses(other, there); err != nil {
				return err
			}
		}
	}
	return nil
}

// misses returns an error if w, whose entry is there, had to read the entry of other and did not.
func (w *write) misses(other *write, there map[Entry]bool) error {
	if w == other || !there[other.Entry] || w.saw[other.Entry] {
		return nil
	}
	before := other.ended.Before(w.begun)
	switch {
	case other.Token < w.Token:
		return fmt.Errorf("entry %d of token %d was written past entry %d of token %d", other.ID, other.Token, w.ID, w.Token)
	case other.Token > w.Token:
		return nil
	case before && other.err == nil:
		return fmt.Errorf("entry %d has not read entry %d, which was acknowledged before", w.ID, other.ID)
	case before && w.form.Settles:
		return fmt.Errorf("entry %d has not read entry %d, which was given up before and was written", w.ID, other.ID)
	case w.form.Alone != "" && w.form.Alone == other.form.Alone && other.saw != nil && !other.saw[w.Entry]:
		return fmt.Errorf("entries %d and %d ran alone, and neither has read the other", w.ID, other.ID)
	}
	return nil
}

// history formats the calls in the order of their begin, for an error.
func history(all []*write, entries []Entry) string {
	slices.SortFunc(all, func(a, b *write) int { return a.begun.Compare(b.begun) })
	var text strings.Builder
	for _, w := range all {
		var saw []int64
		for e := range w.saw {
			saw = append(saw, e.ID)
		}
		slices.Sort(saw)
		fmt.Fprintf(&text, "\n%8s to %8s  entry %3d  token %d  %-40s saw %v: %v",
			w.begun.Sub(all[0].begun).Round(10*time.Microsecond), w.ended.Sub(all[0].begun).Round(10*time.Microsecond),
			w.ID, w.Token, w.form.Name, saw, w.err)
	}
	fmt.Fprintf(&text, "\nthere: %v", entries)
	return text.String()
}

// The environment sets the number of rounds and the seed of a random test.
const (
	roundsEnv = "LEASEFENCE_FENCE_ROUNDS"
	seedEnv   = "LEASEFENCE_FENCE_SEED"
)

// resources numbers the resources, so that each name is new in this process.
var resources atomic.Int64

// seeded returns random numbers of a new seed, or of the one in the environment, and the seed.
func seeded(t *testing.T) (random *rand.Rand, seed uint64) {
	t.Helper()
	seed = fromEnv(t, seedEnv, rand.Uint64()>>1)
	t.Logf("to repeat it: %s=%d", seedEnv, seed)
	return rand.New(rand.NewPCG(seed, 0)), seed
}

// fromEnv returns the number in an environment variable, or otherwise if it is not set.
func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
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

// Told records calls of a store's hooks. Make it with room for some.
type Told chan Event

// Event is a call of a hook. Err is nil if the token was accepted.
type Event struct {
	fence.Access

	Err error
}

// Hooks returns the hooks for the store's options.
func (t Told) Hooks() *fence.Hooks {
	add := func(e Event) {
		select {
		case t <- e:
		default: // nobody looks at so many
		}
	}
	return &fence.Hooks{
		Accepted: func(_ context.Context, a fence.Access) { add(Event{a, nil}) },
		Refused:  func(_ context.Context, a fence.Access, err error) { add(Event{a, err}) },
	}
}

// Last returns the one event since the last call. It fails if there is none, or more than one.
func (t Told) Last() (last Event, err error) {
	n := len(t)
	for range n {
		last = <-t
	}
	if n != 1 {
		err = fmt.Errorf("the hooks were called %d times, want 1; the last is %v", n, last)
	}
	return last, err
}
