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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasefence/leasefence/fence"
)

const (
	fewRounds = 40
	atOnce    = 4 // rounds at the same time
	holders   = 3 // of a round
	hands     = 2 // goroutines of a holder
	calls     = 3 // of a goroutine
	longest   = 3 * time.Millisecond
	patience  = time.Minute // bounds a round, which is far shorter

	last = fence.Token(1000) // newer than every holder's token
)

// readers are the tokens of readers, which lie between those of writers.
var readers = []fence.Token{15, 25}

// Entry is what a write leaves in the resource.
type Entry struct {
	ID    int64
	Token fence.Token
}

// String returns the form that [Entries] reads.
func (e Entry) String() string { return fmt.Sprintf("%d:%d", e.ID, e.Token) }

// Entries reads entries with spaces between them.
func Entries(text string) (all []Entry, err error) {
	for word := range strings.FieldsSeq(text) {
		var e Entry
		if _, err := fmt.Sscanf(word, "%d:%d", &e.ID, &e.Token); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// Form is a way to write to a resource.
type Form struct {
	Name string

	// Alone names a group of forms: of those with the same name, one write of a token runs at a time. No group if
	// empty.
	Alone string

	// Settles reports that a write sees the entries of all writes that were given up before it began and were done.
	Settles bool

	// Write appends e to the resource if the token of ctx is not stale. It calls saw with the entries that it has read
	// under its guard, again each time that it retries, unless the form reads nothing.
	Write func(ctx context.Context, resource string, e Entry, saw func([]Entry)) error
}

// Store is a kind of resource with its fence.
type Store struct {
	Forms  []Form
	Claims []func(ctx context.Context, resource string) error

	// Reads and ClaimRead are for readers; none if empty. A read calls saw with what it has read, and then checks.
	Reads     []Form
	ClaimRead func(ctx context.Context, resource string) error

	// Entries returns the entries of a resource, once nothing older than the token of ctx can be written.
	Entries func(ctx context.Context, resource string) ([]Entry, error)

	// Ordered reports that Entries returns the entries in the order in which they were written.
	Ordered bool

	// Unknown is the sentinel of errors after which a write may have been done, whatever else such an error matches;
	// nil for none.
	Unknown error

	// Again reports whether a caller may repeat a call after this error.
	Again func(error) bool
}

// write is one call of a form.
type write struct {
	Entry
	form         Form
	reads        bool
	begun, ended time.Time
	err          error
	saw          map[Entry]bool // nil if the call has not read
	dice         dice
}

// dice make the random choices of a call or of a goroutine. Each has its own, so a seed repeats them all, whatever the
// schedule is and however often a store calls saw.
type dice struct{ *rand.Rand }

// below returns a duration that is less than limit.
func (d dice) below(limit time.Duration) time.Duration { return time.Duration(d.Int64N(int64(limit))) }

// pause varies the schedules; nothing relies on its length.
func (d dice) pause(n int) { time.Sleep(d.below(time.Duration(n)*longest/2 + 1)) }

// Random runs rounds, fewRounds or as many as the environment says, until one shows a fault. A seed repeats the calls,
// the pauses and when a call is cancelled, but not the schedule: run a seed several times.
func Random(t *testing.T, s Store) {
	t.Helper()
	_, seed := seeded(t)
	rounds := fromEnv(t, roundsEnv, fewRounds)
	next := make(chan uint64)
	var running sync.WaitGroup
	var mu sync.Mutex // guards tally and fault
	tally := map[string]int{}
	var fault error
	for range atOnce {
		running.Go(func() {
			for i := range next {
				all, err := s.round(t.Context(), fmt.Sprintf("random %d", i), func(id int) dice {
					return dice{rand.New(rand.NewPCG(seed, i<<32+uint64(id)))}
				})
				mu.Lock()
				fault = errors.Join(fault, err)
				for _, w := range all {
					tally[w.outcome()]++
				}
				mu.Unlock()
			}
		})
	}
	for i := range rounds {
		mu.Lock()
		done := fault != nil
		mu.Unlock()
		if done {
			break
		}
		next <- i
	}
	close(next)
	running.Wait()
	if fault != nil {
		t.Fatal(fault)
	}
	t.Logf("%d rounds: %v", rounds, tally)
	enough := []string{"written", "refused", "given up"}
	if s.ClaimRead != nil {
		enough = append(enough, "read", "reader refused")
	}
	for _, enough := range enough {
		if tally[enough] == 0 {
			t.Fatalf("too few for a verdict: %v", tally)
		}
	}
}

func (w *write) outcome() string {
	switch stale := errors.Is(w.err, fence.ErrStale); {
	case w.err == nil && w.reads:
		return "read"
	case w.err == nil:
		return "written"
	case stale && w.reads:
		return "reader refused"
	case stale:
		return "refused"
	default:
		return "given up"
	}
}

// round makes holders overlap at one resource, and judges the entries at the end.
func (s Store) round(ctx context.Context, resource string, throw func(id int) dice) ([]*write, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var running sync.WaitGroup
	var mu sync.Mutex // guards all and fault
	var all []*write
	var fault error
	act := func(order, id int, token fence.Token, reads bool) {
		running.Go(func() {
			throw(id).pause(order) // newer holders mostly start later
			for call := range calls {
				w := &write{Entry: Entry{int64(id + call + 1), token}, reads: reads, dice: throw(id + call + 1)}
				err := s.call(ctx, resource, w)
				mu.Lock()
				fault = errors.Join(fault, err)
				if !w.begun.IsZero() {
					all = append(all, w)
				}
				mu.Unlock()
			}
		})
	}
	for holder := range holders {
		for hand := range hands {
			act(holder, 100*holder+10*hand, fence.Token(10*(holder+1)), false)
		}
	}
	for i, token := range readers {
		if s.ClaimRead != nil {
			act(i+1, 500+100*i, token, true)
		}
	}
	running.Wait()
	if fault != nil {
		return all, fault
	}
	entries, err := s.Entries(Verb{}.Context(ctx, last, "accounts"), resource)
	if err != nil {
		return all, fmt.Errorf("%s: at the end: %w", resource, err)
	}
	if err := s.judge(all, entries); err != nil {
		return all, fmt.Errorf("%s: %w%s", resource, err, history(all, entries))
	}
	return all, nil
}

// call makes a claim, a write or a read. It cancels about every third call early.
func (s Store) call(ctx context.Context, resource string, w *write) error {
	ctx = Verb{Reads: w.reads}.Context(ctx, w.Token, "accounts")
	whole := ctx
	if w.dice.IntN(3) == 0 {
		// Not a deadline: a dialler may give up a moment before the context reports it.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(w.dice.below(longest), cancel).Stop()
	}
	var err error
	switch claims := w.dice.IntN(4) == 0; {
	case claims && w.reads:
		err = s.ClaimRead(ctx, resource)
	case claims && len(s.Claims) > 0:
		err = s.Claims[w.dice.IntN(len(s.Claims))](ctx, resource)
	default:
		forms := s.Forms
		if w.reads {
			forms = s.Reads
		}
		w.form = forms[w.dice.IntN(len(forms))]
		w.begun = time.Now()
		err = w.form.Write(ctx, resource, w.Entry, func(seen []Entry) {
			w.saw = make(map[Entry]bool, len(seen))
			for _, e := range seen {
				w.saw[e] = true
			}
			w.dice.pause(1)
		})
		w.err, w.ended = err, time.Now()
	}
	if err == nil || errors.Is(err, fence.ErrStale) || s.Again(err) && !errors.Is(err, fence.ErrOtherLock) || ctx.Err() != nil && whole.Err() == nil {
		return nil
	}
	return fmt.Errorf("%s: %s with token %d: %w", resource, w.form.Name, w.Token, err)
}

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
