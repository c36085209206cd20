package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/leasefence/leasefence/fence"
)

// resource is the ledger's name for its guard.
const resource = "ledger"

// entry is a line of the ledger. Seq and Balance are computed by the writer, from the entry before.
type entry struct {
	Seq     int
	Amount  int
	Balance int
	Writer  string
}

func (e entry) String() string {
	return fmt.Sprintf("#%d (%+d, balance %d)", e.Seq, e.Amount, e.Balance)
}

// place is what a reader knows of the ledger that has found e at its end.
func (e entry) place() string {
	if e.Seq == 0 {
		return "nothing"
	}
	return fmt.Sprintf("#%d", e.Seq)
}

// attempt is a write that has reached the ledger.
type attempt struct {
	entry entry
	token fence.Token
	err   error // why it was refused, nil if it was accepted
}

// ledger is the resource: a log that only grows. It takes what it is given and relies on its writers to come one
// after the other; that is what their lock is for, and its guard is for when the lock is not enough.
type ledger struct {
	fenced bool
	tl     *timeline
	guard  fence.Guard

	mu       sync.Mutex // guards the fields below
	entries  []attempt  // accepted
	attempts []attempt  // accepted or not, in the order of their coming
}

// claim begins a writer's tenure: older tokens are refused from now on.
func (l *ledger) claim(token fence.Token) error {
	if !l.fenced {
		l.tl.add(ledgerActor, token, plain, "takes no notice of the claim: fencing is off")
		return nil
	}
	if err := l.guard.Claim(resource, token); err != nil {
		l.tl.add(ledgerActor, token, bad, fmt.Sprintf("REFUSES the claim: %v", err))
		return err
	}
	l.tl.add(ledgerActor, token, plain, fmt.Sprintf("is claimed: refuses tokens below %v from now on", token))
	return nil
}

// append writes an entry. The check of the token and the write are one step: Do lets nothing come between.
func (l *ledger) append(token fence.Token, e entry) error {
	write := func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.entries = append(l.entries, attempt{entry: e, token: token})
		return nil
	}
	var err error
	if l.fenced {
		err = l.guard.Do(resource, token, write)
	} else {
		err = write()
	}

	l.mu.Lock()
	l.attempts = append(l.attempts, attempt{entry: e, token: token, err: err})
	late := slices.ContainsFunc(l.entries, func(a attempt) bool { return a.token > token })
	l.mu.Unlock()
	switch {
	case errors.Is(err, fence.ErrStale):
		l.tl.add(ledgerActor, token, bad, fmt.Sprintf("REFUSES %s's %v: %v", e.Writer, e, err))
	case err == nil && late:
		l.tl.add(ledgerActor, token, bad, fmt.Sprintf("ACCEPTS %s's %v: it does not look at the token", e.Writer, e))
	case err == nil:
		l.tl.add(ledgerActor, token, good, fmt.Sprintf("accepts %s's %v", e.Writer, e))
	}
	return err
}

// last returns the newest entry, the zero entry of an empty ledger.
func (l *ledger) last() entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == 0 {
		return entry{}
	}
	return l.entries[len(l.entries)-1].entry
}

// history returns the accepted entries, and all writes that have reached the ledger.
func (l *ledger) history() (entries, attempts []attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries), slices.Clone(l.attempts)
}
