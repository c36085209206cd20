package sqlfence_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

const (
	readRounds = 60
	readCalls  = 4
)

// Readers and writers overlap, in all forms and at all levels of a store, and their calls are cancelled at random. A reader reads
// everything that older writers have written and will ever have written, nothing of newer ones, and twice the same. A writer
// has read everything that is there of older ones, and all that was acknowledged under its own token. The holders of another
// lock, with higher tokens, are always refused.
func TestMarks_readersRandom(t *testing.T) {
	for _, one := range each {
		t.Run(string(one.kind), func(t *testing.T) {
			first := newRig(t, one)
			first.db.SetMaxIdleConns(24)
			first.must(t, "CREATE TABLE entries (resource VARCHAR(64), id BIGINT, token BIGINT, PRIMARY KEY (resource, id))")
			var rigs []*rig
			for _, p := range places {
				if p.kind != one.kind || p.journal != one.journal {
					continue
				}
				r := newRigOn(t, p, first.store)
				if !p.pgx {
					r.db = first.db
					r.adapter = r.with(t, sqlfence.Options{Attempts: 50})
				}
				rigs = append(rigs, r)
			}
			tally := map[string]int{}
			for i := range readRounds {
				round := &readRound{rigs: rigs, resource: fmt.Sprintf("readers %d", i), tally: tally}
				require.NoError(t, round.run(t.Context()))
			}
			t.Log(tally)
			for _, enough := range []string{"read", "written", "reader refused", "writer refused", "writer refused by a reader", "of another lock"} {
				require.NotZero(t, tally[enough], "too few for a verdict: %v", tally)
			}
		})
	}
}

// readRound is one resource where holders overlap.
type readRound struct {
	rigs     []*rig
	resource string

	mu    sync.Mutex // guards the rest
	tally map[string]int
	fault error
	all   []*access
}

// access is a read or a write that was accepted and committed.
type access struct {
	fencetest.Entry
	lock, by     string
	reads        bool
	begun, ended time.Time
	saw          []fencetest.Entry
}

func (r *readRound) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // bounds what comes to an end by itself
	defer cancel()
	if err := r.rigs[0].claim(fence.WithLock(fence.NewContext(ctx, 1), "right"), r.resource); err != nil {
		return err
	}
	var running sync.WaitGroup
	for _, reads := range []bool{false, true} {
		running.Go(func() {
			for call := range readCalls {
				a := &access{Entry: fencetest.Entry{ID: int64(500 + call), Token: 500}, lock: "wrong", reads: reads}
				r.note(a, r.call(ctx, a))
			}
		})
	}
	for i, reads := range []bool{false, true, true, false, true} {
		for hand := range 2 {
			running.Go(func() {
				time.Sleep(rand.N(time.Duration(i+1) * 2 * time.Millisecond)) // it makes schedules, and nothing relies on it
				for call := range readCalls {
					a := &access{Entry: fencetest.Entry{ID: int64(100*i + 10*hand + call + 1), Token: fence.Token(10 * (i + 1))}, lock: "right", reads: reads}
					r.note(a, r.call(ctx, a))
				}
			})
		}
	}
	running.Wait()
	if r.fault != nil {
		return r.fault
	}
	last := &access{Entry: fencetest.Entry{ID: 1000, Token: 1000}}
	if err := r.write(fence.WithLock(fence.NewContext(ctx, last.Token), "right"), r.rigs[0], do, last); err != nil {
		return err
	}
	if err := r.judge(last.saw); err != nil {
		return fmt.Errorf("%s: %w%s", r.resource, err, r.history())
	}
	return nil
}

// call is a claim, a read or a write. Every third ends early.
func (r *readRound) call(ctx context.Context, a *access) error {
	if a.reads {
		ctx = fence.NewReadContext(ctx, fence.ReadToken(a.Token))
	} else {
		ctx = fence.NewContext(ctx, a.Token)
	}
	ctx = fence.WithLock(ctx, a.lock)
	if rand.N(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(rand.N(3*time.Millisecond), cancel).Stop()
	}
	at, how := r.rigs[rand.N(len(r.rigs))], forms[rand.N(len(forms))]
	claims := rand.N(3) == 0
	a.begun = time.Now()
	defer func() { a.ended = time.Now() }()
	switch {
	case a.reads && claims:
		a.by = "ClaimRead"
		return at.claimRead(ctx, r.resource)
	case a.reads:
		a.by = at.String() + ", CheckRead"
		return r.read(ctx, at, a)
	case claims:
		a.by = "Claim"
		return at.claim(ctx, r.resource)
	default:
		a.by = at.String() + ", " + string(how)
		return r.write(ctx, at, how, a)
	}
}

var errChanged = errors.New("what was read under CheckRead has changed")

func (r *readRound) read(ctx context.Context, at *rig, a *access) error {
	return at.transaction(ctx, func(tx conn) (err error) {
		if err := at.checkRead(ctx, tx, r.resource); err != nil {
			return err
		}
		if a.saw, err = entries(ctx, tx, r.resource); err != nil {
			return err
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // it makes schedules, and nothing relies on it
		again, err := entries(ctx, tx, r.resource)
		byID := func(a, b fencetest.Entry) int { return cmp.Compare(a.ID, b.ID) }
		slices.SortFunc(a.saw, byID)
		slices.SortFunc(again, byID)
		if err == nil && !slices.Equal(a.saw, again) {
			err = fmt.Errorf("%w: %v, then %v", errChanged, a.saw, again)
		}
		return err
	})
}

func (r *readRound) write(ctx context.Context, at *rig, how form, a *access) error {
	return at.runOn(ctx, r.resource, how, nowhere, func(ctx context.Context, tx conn) (err error) {
		if a.saw, err = entries(ctx, tx, r.resource); err != nil {
			return err
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // it makes schedules, and nothing relies on it
		return tx.exec(ctx, fmt.Sprintf("INSERT INTO entries VALUES ('%s', %d, %d)", r.resource, a.ID, a.Token))
	})
}

// note records what became of a call.
func (r *readRound) note(a *access, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stale, refused := errors.AsType[*fence.StaleError](err)
	other, ofOther := errors.AsType[*fence.OtherLockError](err)
	switch {
	case ofOther && a.lock == "wrong" && other.Follows == "right" && other.Read == a.reads:
		r.tally["of another lock"]++
	case ofOther, a.lock == "wrong" && (err == nil || refused):
		r.fault = errors.Join(r.fault, fmt.Errorf("%s: %s of token %d of lock %s: %w", r.resource, a.by, a.Token, a.lock, err))
	case errors.Is(err, errChanged):
		r.fault = errors.Join(r.fault, fmt.Errorf("%s: %s of token %d: %w", r.resource, a.by, a.Token, err))
	case refused && (stale.Read != a.reads || stale.Highest <= a.Token || stale.Resource != r.resource):
		r.fault = errors.Join(r.fault, fmt.Errorf("%s: %s of token %d: %w", r.resource, a.by, a.Token, err))
	case refused && a.reads:
		r.tally["reader refused"]++
	case refused && stale.ByReader:
		r.tally["writer refused by a reader"]++
	case refused:
		r.tally["writer refused"]++
	case err != nil:
		r.tally["given up"]++
	case a.by == "Claim" || a.by == "ClaimRead":
		r.tally["claimed"]++
	case a.reads:
		r.tally["read"]++
		r.all = append(r.all, a)
	default:
		r.tally["written"]++
		r.all = append(r.all, a)
	}
}

// judge compares what was read with what is there at the end.
func (r *readRound) judge(there []fencetest.Entry) error {
	for _, a := range r.all {
		if !a.reads && !slices.Contains(there, a.Entry) {
			return fmt.Errorf("entry %d was acknowledged and is not there", a.ID)
		}
		for _, seen := range a.saw {
			if seen.Token > a.Token {
				return fmt.Errorf("%d of token %d has read entry %d of token %d", a.ID, a.Token, seen.ID, seen.Token)
			}
		}
		for _, other := range there {
			if other.Token < a.Token && !slices.Contains(a.saw, other) {
				return fmt.Errorf("entry %d of token %d was written past %d of token %d", other.ID, other.Token, a.ID, a.Token)
			}
		}
		for _, other := range r.all {
			if !other.reads && other.Token == a.Token && other.ended.Before(a.begun) && !slices.Contains(a.saw, other.Entry) {
				return fmt.Errorf("%d has not read entry %d, which was acknowledged before", a.ID, other.ID)
			}
		}
	}
	return nil
}

// history is for people.
func (r *readRound) history() (text string) {
	slices.SortFunc(r.all, func(a, b *access) int { return a.begun.Compare(b.begun) })
	for _, a := range r.all {
		text += fmt.Sprintf("\n%8s to %8s  %3d  token %d  %-40s saw %v", a.begun.Sub(r.all[0].begun).Round(10*time.Microsecond),
			a.ended.Sub(r.all[0].begun).Round(10*time.Microsecond), a.ID, a.Token, a.by, a.saw)
	}
	return text
}
