package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leasefence/leasefence/fence"
)

const (
	seedEnv      = "LEASEFENCE_FENCE_SEED"
	fewHistories = 30
	fewCalls     = 30 // of a history
	fewHolders   = 5  // of more, the oldest paused one is dropped
)

var errMode = errors.New("its context has no token for this verb, and the error does not match fence.ErrInvalidToken")

// Verbs are the verbs of a store. Each takes the token that ctx carries. Check must raise a lower mark.
type Verbs struct {
	Claim, Check, ClaimRead, CheckRead func(ctx context.Context, resource string) error

	// Told has recorded the store's hooks: each call must report the verb's answer to them. Optional.
	Told *Told
}

// resources numbers the resources, so that each name is new in this process.
var resources atomic.Int64

// Grants plays random histories of a read/write lock against the marks of a store; see the package's documentation.
func Grants(t *testing.T, v Verbs) {
	t.Helper()
	histories := fromEnv(t, roundsEnv, fewHistories)
	seed := fromEnv(t, seedEnv, rand.Uint64()>>1)
	t.Logf("%d histories; to repeat them: %s=%d", histories, seedEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tally := map[string]int{}
	for range histories {
		h := newHistory(v, random, fmt.Sprintf("grants %x %d", seed, resources.Add(1)), tally)
		if err := h.play(t.Context()); err != nil {
			t.Fatalf("%s: %v: %v", h.resource, err, h)
		}
	}
	t.Logf("%v", tally)
}

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

// holder is a grant of the lock.
type holder struct {
	token fence.Token
	reads bool
	live  bool
	calls int
	claim int // the number of the call that claims first
}

func (h *holder) String() string {
	text := fmt.Sprintf("writer %d", h.token)
	if h.reads {
		text = fmt.Sprintf("reader %d", h.token)
	}
	if !h.live {
		text += ", paused past its lease,"
	}
	return text
}

func (h *holder) context(ctx context.Context) context.Context {
	if h.reads {
		return fence.NewReadContext(ctx, fence.ReadToken(h.token))
	}
	return fence.NewContext(ctx, h.token)
}

// lockHistory is a history of one lock and one resource. The lock is strictly first in, first out: readers do not pass
// a waiting writer.
type lockHistory struct {
	verbs    Verbs
	random   *rand.Rand
	resource string
	tally    map[string]int

	waiting *holder   // the first in the queue
	holders []*holder // live and paused ones, from the oldest to the newest
	marks   Marks     // as they must be
	lines   []string
}

func newHistory(v Verbs, random *rand.Rand, resource string, tally map[string]int) *lockHistory {
	h := &lockHistory{verbs: v, random: random, resource: resource, tally: tally}
	// Start near another digit: a store that compares tokens as text is wrong there.
	h.queue([]fence.Token{0, 90, 999_990}[random.IntN(3)])
	return h
}

// queue creates the next holder in the queue, with a token above the given one.
func (h *lockHistory) queue(after fence.Token) {
	h.waiting = &holder{
		token: after + 1 + fence.Token(h.random.IntN(3)),
		reads: h.random.IntN(2) == 0,
		claim: []int{0, h.random.IntN(4), math.MaxInt}[h.random.IntN(3)], // early, late, never
	}
}

// play runs the history and returns the first wrong answer of the store.
func (h *lockHistory) play(ctx context.Context) error {
	for calls := 0; calls < fewCalls; {
		switch at := h.random.IntN(len(h.holders) + 1); {
		case at == len(h.holders) || h.random.IntN(3) == 0:
			h.grant()
		case h.holders[at].live && h.random.IntN(4) == 0:
			h.end(at)
		default:
			calls++
			if err := h.call(ctx, h.holders[at]); err != nil {
				return err
			}
		}
	}
	return nil
}

// grant grants the lock to the first in the queue, if no live holder is in its way.
func (h *lockHistory) grant() {
	for _, other := range h.holders {
		if other.live && (!other.reads || !h.waiting.reads) {
			return
		}
	}
	h.waiting.live = true
	h.note("granted to %v", h.waiting)
	h.holders = append(h.holders, h.waiting)
	if oldest := slices.IndexFunc(h.holders, func(o *holder) bool { return !o.live }); oldest >= 0 && len(h.holders) > fewHolders {
		h.holders = slices.Delete(h.holders, oldest, oldest+1)
	}
	h.queue(h.waiting.token)
}

// end ends a tenure: the holder unlocks and is gone, or its lease ends while it is paused, and it acts later.
func (h *lockHistory) end(at int) {
	if h.random.IntN(3) > 0 {
		h.holders[at].live = false
		h.note("%v loses the lock", h.holders[at])
		return
	}
	h.note("%v unlocks", h.holders[at])
	h.holders = slices.Delete(h.holders, at, at+1)
}

// call makes a holder claim, read or write.
func (h *lockHistory) call(ctx context.Context, by *holder) error {
	claim := by.calls == by.claim || by.calls > by.claim && h.random.IntN(4) == 0 // a claim may be repeated
	by.calls++
	foreign := h.random.IntN(15) == 0 // a verb of the other mode, for which the context has no token
	verb, name := h.verbs.Check, "Check"
	switch reads := by.reads != foreign; {
	case reads && claim:
		verb, name = h.verbs.ClaimRead, "ClaimRead"
	case reads:
		verb, name = h.verbs.CheckRead, "CheckRead"
	case claim:
		verb, name = h.verbs.Claim, "Claim"
	}
	h.verbs.Told.take()
	err := verb(by.context(ctx), h.resource)
	h.note("%v: %s: %v", by, name, err)
	if err := h.verbs.Told.check(by, err); err != nil {
		return fmt.Errorf("%v: %s: %w", by, name, err)
	}
	if foreign {
		h.tally["without a token of its mode"]++
		if !errors.Is(err, fence.ErrInvalidToken) || errors.Is(err, fence.ErrStale) {
			return fmt.Errorf("%v: %s: %w: %v", by, name, errMode, err) //nolint:errorlint // err may be nil
		}
		return nil
	}
	if err := h.judge(by, err); err != nil {
		return fmt.Errorf("%v: %s: %w", by, name, err)
	}
	return nil
}

// judge compares an answer with the rule, and the rule with its purpose: a live holder is never refused.
func (h *lockHistory) judge(by *holder, err error) error {
	after, want := h.marks.After(Verb{Reads: by.reads}, by.token, "", false)
	if want != nil && by.live {
		return fmt.Errorf("live and refused: %w", want)
	}
	due, _ := errors.AsType[*fence.StaleError](want)
	got, refused := errors.AsType[*fence.StaleError](err)
	if refused {
		unnamed := *got
		unnamed.Resource = "" // a store's name of the resource may be longer
		got = &unnamed
	}
	if refused != (err != nil) || !reflect.DeepEqual(due, got) {
		return fmt.Errorf("want %v: %w", want, err) //nolint:errorlint // they may be nil
	}
	h.marks = after
	switch {
	case due == nil:
		h.tally["accepted"]++
	case due.Read:
		h.tally["readers refused"]++
	case due.ByReader:
		h.tally["writers refused by the read mark"]++
	default:
		h.tally["writers refused by the write mark"]++
	}
	return nil
}

func (h *lockHistory) note(format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

// String returns the history, for an error.
func (h *lockHistory) String() string { return "the history is\n\t" + strings.Join(h.lines, "\n\t") }
