// Package ledger is the resource of the examples: an append-only log in an SQLite database, which refuses writes with a
// stale token. This file and book.go show what a resource has to do; http.go puts it on the network.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/leasefence/leasefence/fence"
)

// Entry is a line of the ledger. The writer computes Seq and Balance from the entry before.
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
	Late  bool  // an entry with a larger token was accepted before
}

// Ledger does not check what entries say. It relies on writers to take turns, by their lock, and on its fence where the
// lock is not enough. It takes a writer's token from the context.
type Ledger struct {
	book    *book
	claimed func(Attempt)
	written func(Attempt)

	mu       sync.Mutex // guards attempts
	attempts []Attempt  // writes, accepted or not, in the order of their arrival
}

// Open creates an empty ledger in a temporary folder. The ledger calls claimed after every claim and written after
// every write, accepted or not. If it is not fenced, it does not check tokens, to show what fencing prevents. The
// caller closes the ledger.
func Open(ctx context.Context, fenced bool, claimed, written func(Attempt)) (*Ledger, error) {
	b, err := openBook(ctx, fenced)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	return &Ledger{book: b, claimed: claimed, written: written}, nil
}

// Close removes the ledger.
func (l *Ledger) Close() error { return l.book.close() }

// Claim begins a writer's tenure: from now on the ledger refuses older tokens.
func (l *Ledger) Claim(ctx context.Context) error {
	token, _ := fence.FromContext(ctx)
	err := l.book.claim(ctx)
	if decided(err) {
		l.claimed(Attempt{Token: token, Err: err})
	}
	return err
}

// Append writes an entry. The error matches [fence.ErrStale] if the token is stale.
func (l *Ledger) Append(ctx context.Context, e Entry) error {
	token, _ := fence.FromContext(ctx)
	err := l.book.insert(ctx, token, e)
	if !decided(err) {
		return err
	}
	late, errLate := l.book.late(ctx, token)
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

// decided reports whether the database has accepted or refused a request, rather than failed.
func decided(err error) bool { return err == nil || errors.Is(err, fence.ErrStale) }

// Last returns the newest entry, or the zero Entry if there is none.
func (l *Ledger) Last(ctx context.Context) (Entry, error) { return l.book.last(ctx) }

// Entries returns the accepted writes, in the order of the ledger. Their Err and Late are not set.
func (l *Ledger) Entries(ctx context.Context) ([]Attempt, error) { return l.book.entries(ctx) }

// Attempts returns all writes that have reached the ledger, accepted or not.
func (l *Ledger) Attempts() []Attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.attempts)
}

// Inspect returns an error if an entry does not continue the entry before it.
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
