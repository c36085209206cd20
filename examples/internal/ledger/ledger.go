// Package ledger is the resource behind the examples: a log that only grows, which refuses writes with a stale token.
// This file is what a resource has to do; http.go puts it on the network.
package ledger

import (
	"fmt"
	"slices"
	"sync"

	"github.com/leasefence/leasefence/fence"
)

// resource is the ledger's name for its guard.
const resource = "ledger"

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

// Place is what a reader knows of the ledger that has found e at its end.
func (e Entry) Place() string {
	if e.Seq == 0 {
		return "nothing"
	}
	return fmt.Sprintf("#%d", e.Seq)
}

// Attempt is a claim or a write that has reached the ledger.
type Attempt struct {
	Entry Entry // that of no claim
	Token fence.Token
	Err   error // why it was refused, nil if it was accepted
	Late  bool  // of a write: one with a larger token was accepted before
}

// Ledger takes what it is given and relies on its writers to come one after the other; that is what their lock is
// for, and its guard is for when the lock is not enough.
type Ledger struct {
	fenced  bool
	claimed func(Attempt)
	written func(Attempt)
	guard   fence.Guard

	mu       sync.Mutex // guards the fields below
	entries  []Attempt  // accepted
	attempts []Attempt  // accepted or not, in the order of their coming
}

// New makes an empty ledger. It calls claimed after every claim and written after every write, accepted or not.
// One that is not fenced does not look at tokens, to show what becomes of it.
func New(fenced bool, claimed, written func(Attempt)) *Ledger {
	return &Ledger{fenced: fenced, claimed: claimed, written: written}
}

// Fenced reports whether the ledger looks at tokens.
func (l *Ledger) Fenced() bool { return l.fenced }

// Claim begins a writer's tenure: older tokens are refused from now on.
func (l *Ledger) Claim(token fence.Token) error {
	var err error
	if l.fenced {
		err = l.guard.Claim(resource, token)
	}
	l.claimed(Attempt{Token: token, Err: err})
	return err
}

// Append writes an entry. The check of the token and the write are one step: Do lets nothing come between.
func (l *Ledger) Append(token fence.Token, e Entry) error {
	write := func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.entries = append(l.entries, Attempt{Entry: e, Token: token})
		return nil
	}
	var err error
	if l.fenced {
		err = l.guard.Do(resource, token, write)
	} else {
		err = write()
	}

	l.mu.Lock()
	a := Attempt{Entry: e, Token: token, Err: err}
	a.Late = slices.ContainsFunc(l.entries, func(a Attempt) bool { return a.Token > token })
	l.attempts = append(l.attempts, a)
	l.mu.Unlock()
	l.written(a)
	return err
}

// Last returns the newest entry, the zero entry of an empty ledger.
func (l *Ledger) Last() Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == 0 {
		return Entry{}
	}
	return l.entries[len(l.entries)-1].Entry
}

// History returns the accepted entries, and all writes that have reached the ledger.
func (l *Ledger) History() (entries, attempts []Attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries), slices.Clone(l.attempts)
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
