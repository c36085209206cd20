// Package ledger is the resource behind the examples: a log that only grows, in an SQLite database, which refuses writes
// with a stale token. This file and book.go are what a resource has to do; http.go puts it on the network.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/leasefence/leasefence/fence"
)

// Entry is a line of the ledger. Seq and Balance are computed by the writer, from the entry before.
type Entry struct {
	Seq     int
	Amount  int
	Balance int
	Writer  string
}

func (e Entry) String() string {
	return fmt.Sprintf("#%d (%+d, balance %d)", e.Seq, e.Amount, e.Balance)
}

// Attempt is a claim or a write that has reached the ledger.
type Attempt struct {
	Entry Entry // zero for a claim
	Token fence.Token
	Err   error // why it was refused, nil if it was accepted
	Late  bool  // of a write: one with a larger token was accepted before
}

// Ledger takes what it is given and relies on its writers to come one after the other; that is what their lock is
// for, and its fence is for when the lock is not enough. It takes their tokens from the context.
type Ledger struct {
	book    *book
	claimed func(Attempt)
	written func(Attempt)

	mu       sync.Mutex // guards attempts
	attempts []Attempt  // writes, accepted or not, in the order of their coming
}

// Open makes an empty ledger in a temporary folder. It calls claimed after every claim and written after every write,
// accepted or not. One that is not fenced does not look at tokens, to show what becomes of it. The caller closes it.
func Open(ctx context.Context, fenced bool, claimed, written func(Attempt)) (*Ledger, error) {
	b, err := openBook(ctx, fenced)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	return &Ledger{book: b, claimed: claimed, written: written}, nil
}

// Close removes the ledger.
func (l *Ledger) Close() error { return l.book.close() }

// Claim begins a writer's tenure: older tokens are refused from now on.
func (l *Ledger) Claim(ctx context.Context) error {
	token, _ := fence.FromContext(ctx)
	err := l.book.claim(ctx)
	if decided(err) {
		l.claimed(Attempt{Token: token, Err: err})
	}
	return err
}

// Append writes an entry.
func (l *Ledger) Append(ctx context.Context, e Entry) error {
	token, _ := fence.FromContext(ctx)
	err := l.book.insert(ctx, token, e)
	if !decided(err) {
		return err
	}
	late, errLate := l.book.has(ctx, token)
	if errLate != nil {
		return errors.Join(err, errLate)
	}
	a := Attempt{Entry: e, Token: token, Err: err, Late: late}
	l.mu.Lock()
	l.attempts = append(l.attempts, a)
	l.mu.Unlock()
	l.written(a)
	return err
}

// decided tells an answer of the ledger, accepted or refused, from a failure to ask it.
func decided(err error) bool { return err == nil || errors.Is(err, fence.ErrStale) }

// Last returns the newest entry, the zero entry of an empty ledger.
func (l *Ledger) Last(ctx context.Context) (Entry, error) { return l.book.last(ctx) }

// Entries returns what is in the ledger.
func (l *Ledger) Entries(ctx context.Context) ([]Attempt, error) { return l.book.entries(ctx) }

// Attempts returns all writes that have reached the ledger, accepted or not.
func (l *Ledger) Attempts() []Attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.attempts)
}

// Inspect returns what is wrong with entries: one that does not continue the one before it.
func Inspect(entries []Attempt) error {
	var last Entry
	for _, a := range entries {
		e := a.Entry
		if e.Seq != last.Seq+1 || e.Balance != last.Balance+e.Amount {
			return fmt.Errorf("%s wrote #%d without having seen %s's #%d: the balance says %d, the amounts add up to %d",
				e.Writer, e.Seq, last.Writer, last.Seq, e.Balance, last.Balance+e.Amount)
		}
		last = e
	}
	return nil
}
