package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasefence/leasefence/fence"
)

const (
	roundsEnv = "LEASEFENCE_FENCE_ROUNDS"
	fewRounds = 80
	atOnce    = 4 // rounds
	holders   = 3 // of a round
	hands     = 2 // of a holder
	calls     = 3 // of a hand
	longest   = 3 * time.Millisecond
	patience  = time.Minute // bounds what comes to an end by itself

	// last is newer than every holder's token.
	last = fence.Token(1000)
)

// Entry is what a write leaves in the resource.
type Entry struct {
	ID    int64
	Token fence.Token
}

// Form is a way to write to a resource.
type Form struct {
	Name string

	// Alone names the forms among which one write of a token runs at a time; none if empty.
	Alone string

	// Settles says that a write has read what was given up before it began, if that is there.
	Settles bool

	// Write appends e to the resource if the token of ctx is not stale. It calls saw with the entries that it has read
	// under its guard, each time that it runs again, unless the form reads nothing.
	Write func(ctx context.Context, resource string, e Entry, saw func([]Entry)) error
}

// Store is a kind of resource with its fence.
type Store struct {
	Forms  []Form
	Claims []func(ctx context.Context, resource string) error

	// Entries returns what is in a resource, when nothing older than the token of ctx is under way any more.
	Entries func(ctx context.Context, resource string) ([]Entry, error)

	// Ordered says that Entries returns them in the order in which they were written.
	Ordered bool

	// Again reports an error after which a caller begins again: nothing was written.
	Again func(error) bool
}

// write is one call of a form.
type write struct {
	Entry
	form         Form
	begun, ended time.Time
	err          error
	saw          map[Entry]bool // nil: it has not got as far
}

// Random runs rounds until it has run enough of them or one shows a fault.
func Random(t *testing.T, s Store) {
	t.Helper()
	rounds := fromEnv(t, roundsEnv, fewRounds)
	next := make(chan uint64)
	var running sync.WaitGroup
	var mu sync.Mutex // guards tally and fault
	tally := map[string]int{}
	var fault error
	for range atOnce {
		running.Go(func() {
			for i := range next {
				all, err := s.round(t.Context(), fmt.Sprintf("random %d", i))
				mu.Lock()
				fault = errors.Join(fault, err)
				for _, w := range all {
					tally[outcome(w.err)]++
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
	for _, enough := range []string{"written", "refused", "given up"} {
		if tally[enough] == 0 {
			t.Fatalf("too few for a verdict: %v", tally)
		}
	}
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "written"
	case errors.Is(err, fence.ErrStale):
		return "refused"
	default:
		return "given up"
	}
}

// round lets holders overlap at one resource, and judges what is there at the end.
func (s Store) round(ctx context.Context, resource string) ([]*write, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var running sync.WaitGroup
	var mu sync.Mutex // guards all and fault
	var all []*write
	var fault error
	for holder := range holders {
		for hand := range hands {
			running.Go(func() {
				pause(holder) // the newer one comes later, as a rule
				for call := range calls {
					w := &write{Entry: Entry{int64(100*holder + 10*hand + call + 1), fence.Token(10 * (holder + 1))}}
					err := s.call(fence.NewContext(ctx, w.Token), resource, w)
					mu.Lock()
					fault = errors.Join(fault, err)
					if !w.begun.IsZero() {
						all = append(all, w)
					}
					mu.Unlock()
				}
			})
		}
	}
	running.Wait()
	if fault != nil {
		return all, fault
	}
	entries, err := s.Entries(fence.NewContext(ctx, last), resource)
	if err != nil {
		return all, fmt.Errorf("%s: at the end: %w", resource, err)
	}
	if err := judge(all, entries, s.Ordered); err != nil {
		return all, fmt.Errorf("%s: %w%s", resource, err, history(all, entries))
	}
	return all, nil
}

// call is a claim or a write. Every third ends early.
func (s Store) call(ctx context.Context, resource string, w *write) error {
	whole := ctx
	if rand.N(3) == 0 {
		// Not a deadline: a dialler may give up a moment before the context reports it.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(rand.N(longest), cancel).Stop()
	}
	var err error
	if len(s.Claims) > 0 && rand.N(4) == 0 {
		err = s.Claims[rand.N(len(s.Claims))](ctx, resource)
	} else {
		w.form = s.Forms[rand.N(len(s.Forms))]
		w.begun = time.Now()
		err = w.form.Write(ctx, resource, w.Entry, func(seen []Entry) {
			w.saw = make(map[Entry]bool, len(seen))
			for _, e := range seen {
				w.saw[e] = true
			}
			pause(1)
		})
		w.err, w.ended = err, time.Now()
	}
	if err == nil || errors.Is(err, fence.ErrStale) || s.Again(err) || ctx.Err() != nil && whole.Err() == nil {
		return nil
	}
	return fmt.Errorf("%s: %s with token %d: %w", resource, w.form.Name, w.Token, err)
}

// pause spreads what would otherwise happen at once: it makes schedules, and nothing relies on its length.
func pause(n int) { time.Sleep(rand.N(time.Duration(n)*longest/2 + 1)) }
