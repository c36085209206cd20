package fence

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// mark is the write mark and the read mark of one resource, and the lock that it follows.
//
// A comparison does not need the turn. A change of the marks does.
type mark struct {
	turn  chan struct{} // full while a mark is being raised and while a function of Do runs
	marks atomic.Pointer[marks]
}

func newMark() *mark {
	m := &mark{turn: make(chan struct{}, 1)}
	m.marks.Store(&marks{})
	return m
}

// marks are the marks of a resource at one moment. They are never changed, only replaced.
type marks struct {
	write, read Token  // the highest of writers and of readers; 0 if none has come
	lock        string // "" if no token has come with a name
}

// claimant is a token and whether it is a reader's.
type claimant struct {
	Token

	read bool
}

func writer(t Token) claimant     { return claimant{Token: t} }
func reader(t ReadToken) claimant { return claimant{Token(t), true} }

// bid is the call of a verb: a claimant, and what is known of its lock.
type bid struct {
	claimant

	ctx context.Context //nolint:containedctx // the verb's, which ends its wait

	above  bool   // like a reader at a node above the end of its path: the token is a writer's
	named  bool   // the token came with the name of a lock
	lock   string // "" without a name
	strict bool   // a token without a name is refused at a resource that follows a lock
	moving bool   // the resource is to follow this lock
}

func (b bid) access(resource string) Access {
	return Access{Resource: resource, Token: b.Token, Read: b.read, Lock: b.lock}
}

// bare is the bid of a verb without a context.
func bare(c claimant) bid { return bid{ctx: context.Background(), claimant: c} }

// refuse returns an error if the bid's token is of another lock or stale. A stale token without a name is reported as
// stale: that is certain, and its lock is not.
func (m *mark) refuse(resource string, b bid) error { return m.marks.Load().refuse(resource, b) }

func (m *marks) refuse(resource string, b bid) error {
	other := m.lock != "" && b.lock != m.lock && !b.moving
	switch {
	case other && b.lock != "":
	case b.Token < m.write:
		return &StaleError{Resource: resource, Token: b.Token, Highest: m.write, Read: b.read && !b.above}
	case !b.read && b.Token < m.read:
		return &StaleError{Resource: resource, Token: b.Token, Highest: m.read, ByReader: true}
	case !other || !b.strict:
		return nil
	}
	return &OtherLockError{Resource: resource, Token: b.Token, Read: b.read, Lock: b.lock, Follows: m.lock}
}

// has reports whether a bid that is not refused changes nothing.
func (m *marks) has(b bid) bool { return m.lifted(b) == *m }

// accept raises the bid's mark, unless the marks refuse it, and then runs fn in the same turn, if there is one. It reports
// whether fn has run. A bid that is refused does not wait for the turn, nor one that changes nothing and has no fn.
func (m *mark) accept(resource string, b bid, fn func() error) (ran bool, err error) {
	now := m.marks.Load()
	if err := now.refuse(resource, b); err != nil || fn == nil && now.has(b) {
		return false, err
	}
	if err := m.take(b.ctx, resource); err != nil {
		return false, err
	}
	defer m.give()
	if err := m.raise(resource, b); err != nil || fn == nil {
		return false, err
	}
	return true, fn()
}

// raise needs the turn, so that no mark changes between the comparison and the store.
func (m *mark) raise(resource string, b bid) error {
	if err := m.refuse(resource, b); err != nil {
		return err
	}
	m.lift(b)
	return nil
}

// load raises the bid's mark, if it is lower, and compares no other: the marks may have been saved at different times.
func (m *mark) load(b bid) {
	if m.marks.Load().has(b) {
		return
	}
	m.turn <- struct{}{}
	m.lift(b)
	m.give()
}

// lift raises the bid's mark, if it is lower. It needs the turn.
func (m *mark) lift(b bid) {
	now := m.marks.Load()
	if next := now.lifted(b); next != *now {
		m.marks.Store(&next)
	}
}

// lifted returns the marks after an accepted bid.
func (m *marks) lifted(b bid) marks {
	next := *m
	if b.read {
		next.read = max(next.read, b.Token)
	} else {
		next.write = max(next.write, b.Token)
	}
	if next.lock == "" || b.moving {
		next.lock = b.lock
	}
	return next
}

// take waits for the turn until ctx ends. The caller gives the turn back. If the turn comes and ctx has ended, take
// fails: the caller may have gone.
func (m *mark) take(ctx context.Context, resource string) error {
	select {
	case m.turn <- struct{}{}:
		if ctx.Err() == nil {
			return nil
		}
		m.give()
	case <-ctx.Done():
	}
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("fence: wait for %q: %w", resource, err)
}

func (m *mark) give() { <-m.turn }
