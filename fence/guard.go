package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// MaxResource is the longest name of a resource, in bytes.
const MaxResource = 1024

// ErrStale reports that a newer token has reached the resource. The caller has lost its lock, and the resource accepts nothing
// more with the same token. The error is a [*StaleError].
var ErrStale = errors.New("fence: stale token")

// StaleError is the refusal of a token that is older than the mark. It matches [ErrStale].
type StaleError struct {
	Resource string
	Token    Token // the refused token
	Highest  Token // the mark, or 0 if the store does not report it
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

// Guard refuses stale tokens for resources in this process. It has a mark for each resource: the highest token that it has
// accepted for it. A mark only grows.
//
// The zero value is ready for use and has no marks. A Guard is safe for concurrent use and must not be copied after its first
// use. It never deletes the mark of a resource, so the service and not its clients should choose the names. A name has at most
// [MaxResource] bytes.
type Guard struct {
	// MaxEra is the highest era that is accepted, 0 for [DefaultMaxEra]; see [Token.CheckEra]. Do not change it after the
	// first use.
	MaxEra uint16

	marks sync.Map // string → *mark; nothing is ever deleted
}

// mark is the highest token of one resource.
//
// Reads take no lock. The mark only grows, so a token below any value read is stale forever, and a token equal to it was
// accepted before. Only a token above it must wait for its turn.
type mark struct {
	turn    chan struct{} // full while highest is being raised and while a function of Do runs
	highest atomic.Int64
}

// Claim starts a tenure. Call it once after a grant, before the first read of the resource: until then the mark does not refuse
// the predecessor. Repeating it is safe.
//
// On success t is the mark and the Guard accepts no older token. Claim waits for a function that [Guard.Do] runs with an older
// token. On failure the mark is unchanged. The error is a [*StaleError] if t is older than the mark, and matches
// [ErrInvalidToken] if t is not valid. Safe for concurrent use.
func (g *Guard) Claim(resource string, t Token) error {
	return g.admit(resource, t, (*mark).await)
}

// Check reports whether t may still write to the resource. It accepts a token that equals the mark. A newer token raises the
// mark, since the mark must be the newest token that the resource has seen, even if its holder has not claimed (HDFS's
// JournalNode does this with the epoch of any request). So Check does what [Guard.Claim] does and has the same errors; in a
// store the two differ.
//
// The answer can be out of date when Check returns: use it to refuse early, and [Guard.Do] to write. Check does not wait if t
// is older than the mark or equal to it. A newer token waits for a function that [Guard.Do] is running. Safe for concurrent
// use.
func (g *Guard) Check(resource string, t Token) error {
	return g.admit(resource, t, (*mark).await)
}

// CheckContext is [Guard.Check] with a context that ends the wait. The error then matches that of ctx, and the mark is
// unchanged.
func (g *Guard) CheckContext(ctx context.Context, resource string, t Token) error {
	return g.admit(resource, t, func(m *mark) error { return m.take(ctx, resource) })
}

// Do checks t as [Guard.Check] does and runs fn if t is accepted. Check and fn are one atomic step for the resource: while fn
// runs t is the mark, no newer token is accepted and no other function runs for the resource.
//
// Do returns the error of fn. If fn fails or panics the mark stays raised. If t is refused, fn does not run and the errors are
// those of Check. If fn is nil, Do returns an error and the mark is unchanged.
//
// Newer tokens wait for fn, so bound its time, for example with the handle's context. When fn has returned, nothing that it
// started may still write. fn must not call Do for the same resource, nor Claim, Check or Load with a newer token: these calls
// wait for fn and would never return. [Guard.Marks] never waits. Safe for concurrent use.
func (g *Guard) Do(resource string, t Token, fn func() error) error {
	return g.do(resource, t, fn, (*mark).await)
}

// DoContext is [Guard.Do] with a context that ends the wait for its turn. Then fn does not run, the error matches that of ctx,
// and the mark is unchanged. Once fn runs, DoContext does not use ctx.
func (g *Guard) DoContext(ctx context.Context, resource string, t Token, fn func() error) error {
	return g.do(resource, t, fn, func(m *mark) error { return m.take(ctx, resource) })
}

// do is Do; take waits for the turn.
func (g *Guard) do(resource string, t Token, fn func() error, take func(*mark) error) error {
	if fn == nil {
		return fmt.Errorf("fence: do for %q: fn is nil, want a function", resource)
	}
	m, err := g.mark(resource, t)
	if err != nil {
		return err
	}
	// A stale caller is refused without waiting for its successor's function.
	if err := m.refuse(resource, t); err != nil {
		return err
	}
	if err := take(m); err != nil {
		return err
	}
	defer m.give()
	if err := m.raise(resource, t); err != nil {
		return err
	}
	return fn()
}

// Marks returns a copy of all marks. It does not wait for a function that [Guard.Do] is running. The function itself may call
// it and sees its own token as the mark. Marks reads one mark after the other: each is at least its value when Marks was
// called.
//
// To keep marks over a restart, save a mark before the write that it accepted, or in one transaction with it. A mark that is
// saved later can be lost in between, and the restarted Guard would accept a token that it had fenced. For the same reason
// save the marks before you answer a Claim. A saved mark whose write then fails does no harm. If two snapshots are saved
// concurrently, a saved mark must not go back.
func (g *Guard) Marks() map[string]Token {
	marks := make(map[string]Token)
	for resource, m := range g.marks.Range {
		marks[resource.(string)] = m.(*mark).load()
	}
	return marks
}

// Load raises the marks to those of a snapshot by [Guard.Marks]. Call it before the Guard is used. Higher marks stay. If a token
// in the snapshot is not valid, Load changes no mark, and the error matches [ErrInvalidToken] and names the resource.
//
// Load is safe for concurrent use. It raises one mark after the other and waits for a function that [Guard.Do] is running for
// that resource.
func (g *Guard) Load(marks map[string]Token) error {
	for _, resource := range slices.Sorted(maps.Keys(marks)) { // sorted: the same error each time
		if err := g.validate(resource, marks[resource]); err != nil {
			return err
		}
	}
	for resource, t := range marks {
		// A valid token can only be stale, and then the mark is higher already.
		_ = g.admit(resource, t, (*mark).await)
	}
	return nil
}

// admit is Check; take waits for the turn.
func (g *Guard) admit(resource string, t Token, take func(*mark) error) error {
	m, err := g.mark(resource, t)
	if err != nil {
		return err
	}
	if t <= m.load() {
		return m.refuse(resource, t)
	}
	if err := take(m); err != nil {
		return err
	}
	defer m.give()
	return m.raise(resource, t)
}

// mark returns the resource's mark. It is already t if t is the first token for the resource.
func (g *Guard) mark(resource string, t Token) (*mark, error) {
	if err := g.validate(resource, t); err != nil {
		return nil, err
	}
	if m, ok := g.marks.Load(resource); ok {
		return m.(*mark), nil
	}
	// A mark is published with its token, so that no mark is ever without one.
	first := &mark{turn: make(chan struct{}, 1)}
	first.highest.Store(int64(t))
	m, _ := g.marks.LoadOrStore(resource, first)
	return m.(*mark), nil
}

func (g *Guard) validate(resource string, t Token) error {
	if len(resource) > MaxResource {
		return fmt.Errorf("fence: resource has %d bytes, want 0 to %d", len(resource), MaxResource)
	}
	if !t.Valid() {
		return fmt.Errorf("%w %d for %q: want %s", ErrInvalidToken, int64(t), resource, legalToken)
	}
	return t.CheckEra(g.MaxEra)
}

func (m *mark) load() Token { return Token(m.highest.Load()) }

// refuse returns an error if t is stale.
func (m *mark) refuse(resource string, t Token) error {
	if highest := m.load(); t < highest {
		return &StaleError{Resource: resource, Token: t, Highest: highest}
	}
	return nil
}

// await waits for the turn without limit. The caller gives the turn back.
func (m *mark) await() error {
	m.turn <- struct{}{}
	return nil
}

// take waits for the turn until ctx ends. The caller gives the turn back. If the turn comes and ctx has ended, take fails: the
// caller may have gone.
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

// raise needs the turn, so that the mark does not change between the comparison and the store.
func (m *mark) raise(resource string, t Token) error {
	if err := m.refuse(resource, t); err != nil {
		return err
	}
	m.highest.Store(int64(t))
	return nil
}
