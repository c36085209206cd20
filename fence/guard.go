package fence

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// ErrStale says that a newer token has reached the resource: the caller has lost its lock, and nothing that it
// retries with the same token will be accepted. The error itself is a [*StaleError].
var ErrStale = errors.New("fence: stale token")

// StaleError is the refusal of a token that is older than the mark. It matches [ErrStale].
type StaleError struct {
	Resource string
	Token    Token // the one refused
	Highest  Token // the mark, or 0 where a store does not tell it
}

// Error names the resource, the token and the mark.
func (e *StaleError) Error() string {
	text := fmt.Sprintf("%v %d for %q", ErrStale, int64(e.Token), e.Resource)
	if e.Highest == 0 {
		return text
	}
	return fmt.Sprintf("%s: highest seen is %d", text, int64(e.Highest))
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Guard refuses stale tokens for resources that live in this process. It holds a mark for each resource: the
// highest token it has seen for it. A mark only ever grows.
//
// The zero value is ready and has no marks. A Guard is safe for concurrent use and must not be copied after its
// first use. It keeps a mark for every resource name that it has accepted a token for, and never forgets one:
// let the names come from the service, not from its clients.
type Guard struct {
	marks sync.Map // string → *mark; nothing is ever deleted
}

// mark is the highest token of one resource.
//
// Reading it takes no lock. As it only grows, a token below a value read at any time is stale for good, and one
// equal to it was accepted by whoever stored it; only a token above it has to wait for mu.
type mark struct {
	mu      sync.Mutex // held to raise highest, and by Do until its function has returned
	highest atomic.Int64
}

// Claim installs a tenure: it is called once after a grant, before the tenure's first read of the resource, for
// a mark protects nothing until the new token has reached the resource. Repeating it does no harm.
//
// On success t is the mark, and no older token is accepted from then on; a function that [Guard.Do] runs with an
// older one has returned, for Claim waits for it. On failure the mark is unchanged. The error is a [*StaleError]
// if t is older than the mark, and matches [ErrInvalidToken] if t is not valid. Safe for concurrent use.
func (g *Guard) Claim(resource string, t Token) error { return g.admit(resource, t) }

// Check says whether t may still write to the resource: it may if no newer token has been seen. A token equal to
// the mark is accepted. A newer one raises the mark, since the mark must be the newest the resource has seen even
// if its holder has not claimed (HDFS's JournalNode does so with the epoch of any request). In this it does what
// [Guard.Claim] does, and has the same errors; in a store the two differ.
//
// Its answer can be out of date by the time it returns: use it to refuse early, and [Guard.Do] to write.
// A token that is older than the mark or equal to it is answered without waiting; a newer one waits for a
// function that [Guard.Do] is running. Safe for concurrent use.
func (g *Guard) Check(resource string, t Token) error { return g.admit(resource, t) }

// Do checks t as [Guard.Check] does and, if it is accepted, runs fn: check and fn are one atomic step for the
// resource. While fn runs t is the mark, no newer token is accepted and no other function runs for the resource.
//
// Do returns what fn returned. The mark stays raised if fn fails or panics: the token has been seen. fn does not run
// if t is refused, with the errors of Check, nor if fn is nil, an error that leaves the mark unchanged.
//
// Newer tokens wait for fn, so bound it, for instance with the handle's context. fn must not call for the same
// resource whatever would wait for fn: Do at all, or Claim, Check and Load with a newer token; it would wait for
// ever. [Guard.Marks] never waits. Safe for concurrent use.
func (g *Guard) Do(resource string, t Token, fn func() error) error {
	if fn == nil {
		return fmt.Errorf("fence: do for %q: fn is nil, want a function", resource)
	}
	m, err := g.mark(resource, t)
	if err != nil {
		return err
	}
	// A stale caller need not wait for its successor's function to be told so.
	if err := m.refuse(resource, t); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.raise(resource, t); err != nil {
		return err
	}
	return fn()
}

// Marks returns a copy of all marks. It does not wait for a function that [Guard.Do] is running, and may be called
// inside one, where the mark of that token is raised already. The marks are read one after the other: each is at
// least what it was when Marks was called.
//
// To outlive a restart, a mark must be saved before the write that it accepted, or in one transaction with it: a
// mark that is saved later can be lost in between, and the restarted Guard accepts a token that it had fenced.
// For the same reason, save before a Claim is answered. A mark saved for a write that then failed does no harm.
// What is saved must not go back either, if two snapshots are saved at once.
func (g *Guard) Marks() map[string]Token {
	marks := make(map[string]Token)
	for resource, m := range g.marks.Range {
		marks[resource.(string)] = m.(*mark).load()
	}
	return marks
}

// Load raises the marks to those of a snapshot by [Guard.Marks], before the Guard is put to work. A mark that is
// higher already stays. If a token in the snapshot is not valid, no mark is changed, and the error matches
// [ErrInvalidToken] and names the resource.
//
// Load is safe for concurrent use; marks are raised one after the other, and each waits for a function that
// [Guard.Do] is running.
func (g *Guard) Load(marks map[string]Token) error {
	for _, resource := range slices.Sorted(maps.Keys(marks)) { // sorted: the same error each time
		if err := validate(resource, marks[resource]); err != nil {
			return err
		}
	}
	for resource, t := range marks {
		// A valid token can only be stale, which says that the mark is higher already.
		_ = g.admit(resource, t)
	}
	return nil
}

func (g *Guard) admit(resource string, t Token) error {
	m, err := g.mark(resource, t)
	if err != nil {
		return err
	}
	if t <= m.load() {
		return m.refuse(resource, t)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.raise(resource, t)
}

// mark returns the resource's mark, which is t already if t is the first token for it.
func (g *Guard) mark(resource string, t Token) (*mark, error) {
	if err := validate(resource, t); err != nil {
		return nil, err
	}
	if m, ok := g.marks.Load(resource); ok {
		return m.(*mark), nil
	}
	// Published with its token in it, so that nobody ever sees a mark without one.
	first := new(mark)
	first.highest.Store(int64(t))
	m, _ := g.marks.LoadOrStore(resource, first)
	return m.(*mark), nil
}

func validate(resource string, t Token) error {
	if t.Valid() {
		return nil
	}
	return fmt.Errorf("%w %d for %q: want %s", ErrInvalidToken, int64(t), resource, legalToken)
}

func (m *mark) load() Token { return Token(m.highest.Load()) }

// refuse returns an error if t is stale.
func (m *mark) refuse(resource string, t Token) error {
	if highest := m.load(); t < highest {
		return &StaleError{Resource: resource, Token: t, Highest: highest}
	}
	return nil
}

// raise is called with mu held: the mark must not change between the comparison and the store.
func (m *mark) raise(resource string, t Token) error {
	if err := m.refuse(resource, t); err != nil {
		return err
	}
	m.highest.Store(int64(t))
	return nil
}
