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

// StaleError is the refusal of a token that is older than a mark. It matches [ErrStale].
type StaleError struct {
	Resource string
	Token    Token // the refused token, of a reader if Read is set
	Highest  Token // the mark, or 0 if the store does not report it
	Read     bool  // Token is a [ReadToken]: a newer writer has reached the resource
	ByReader bool  // Highest is a [ReadToken]: a newer reader has reached the resource
}

// Error names the resource, the token and the mark.
func (e *StaleError) Error() string {
	text, highest := fmt.Sprintf("%v %d for %q", ErrStale, int64(e.Token), e.Resource), "highest seen"
	if e.Read {
		text = fmt.Sprintf("%v %d of a reader for %q", ErrStale, int64(e.Token), e.Resource)
	}
	if e.ByReader {
		highest = "highest seen of a reader"
	}
	if e.Highest == 0 {
		return text
	}
	return fmt.Sprintf("%s: %s is %d", text, highest, int64(e.Highest))
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Guard refuses stale tokens for resources in this process. It has two marks for each resource: the write mark is the highest
// token of a writer that it has accepted, the read mark that of a reader. Marks only grow. A writer is stale if its token is
// older than one of the two, a reader if its token is older than the write mark. So readers do not refuse each other.
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

// mark is the write mark and the read mark of one resource.
//
// Who only compares takes no turn. Marks only grow, so a token that is found stale stays so. Who raises a mark waits for the
// turn.
type mark struct {
	turn    chan struct{} // full while a mark is being raised and while a function of Do runs
	highest atomic.Int64  // of writers; 0 if none has come
	read    atomic.Int64  // of readers; 0 if none has come
}

// claimant is a token and whether it is a reader's.
type claimant struct {
	Token

	read bool
}

func writer(t Token) claimant     { return claimant{Token: t} }
func reader(t ReadToken) claimant { return claimant{Token(t), true} }

// Claim starts a tenure. Call it once after a grant, before the first read of the resource: until then the mark does not refuse
// the predecessor. Repeating it is safe.
//
// On success t is the mark and the Guard accepts no older token. Claim waits for a function that [Guard.Do] runs with an older
// token. On failure the mark is unchanged. The error is a [*StaleError] if t is older than the mark, and matches
// [ErrInvalidToken] if t is not valid. Safe for concurrent use.
func (g *Guard) Claim(resource string, t Token) error {
	return g.admit(resource, writer(t), (*mark).await)
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
	return g.admit(resource, writer(t), (*mark).await)
}

// ClaimRead starts the tenure of a reader. Call it once after a grant, before the first read of the resource: until then the
// marks do not refuse a writer that held the lock before, and it could write while the reader reads. Repeating it is safe.
//
// On success the read mark is at least t and the Guard accepts no older token of a writer. ClaimRead waits for a function that
// [Guard.Do] runs with an older token. On failure the marks are unchanged. The error is a [*StaleError] if t is older than the
// write mark, and matches [ErrInvalidToken] if t is not valid. Safe for concurrent use.
func (g *Guard) ClaimRead(resource string, t ReadToken) error {
	return g.admit(resource, reader(t), (*mark).await)
}

// CheckRead reports whether t may still read the resource: it is not older than the write mark. It raises the read mark, even if
// its holder has not claimed, as [Guard.Check] raises the write mark. So it does what [Guard.ClaimRead] does and has the same
// errors.
//
// Call it after a read, before its result is used: if it accepts t, no newer writer was accepted before, so that what was read
// is what t's lock protects. A value that is written elsewhere later is not protected by that: pass the token along and check
// it where the value is written. Safe for concurrent use.
func (g *Guard) CheckRead(resource string, t ReadToken) error {
	return g.admit(resource, reader(t), (*mark).await)
}

// CheckReadContext is [Guard.CheckRead] with a context that ends the wait. The error then matches that of ctx, and the marks are
// unchanged.
func (g *Guard) CheckReadContext(ctx context.Context, resource string, t ReadToken) error {
	return g.admit(resource, reader(t), func(m *mark) error { return m.take(ctx, resource) })
}

// ClaimPath is [Guard.Claim] for a node of a tree of resources, with the token of a lock on the node: those whose locks were on a
// node above or below are fenced too, and those on other branches are not. A path's nodes are the names that end at its slashes
// and at its end: those of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success t is the write mark of the node, and no less than the read marks of the nodes above, as if it were a reader there. It
// is refused if it is older than the write mark of one of them, or than one of the node's two marks. On failure no mark is
// changed, and the error names the node. ClaimPath waits for functions that [Guard.Do] runs at any of the nodes.
func (g *Guard) ClaimPath(path string, t Token) error {
	if err := g.validate(path, writer(t)); err != nil {
		return err
	}
	var nodes []*node
	for i := range len(path) + 1 {
		if i == len(path) || path[i] == '/' {
			nodes = append(nodes, &node{g.find(path[:i]), path[:i], claimant{t, i < len(path)}})
		}
	}
	settled := true
	for _, n := range nodes {
		if err := n.refuse(); err != nil {
			return err
		}
		settled = settled && n.has(n.claimant)
	}
	if settled {
		return nil
	}
	// Everybody from the path's end up: who waits for a function holds up nobody on other branches. The nodes that two paths share
	// are taken in the same order, so nobody waits for somebody who waits for him.
	for _, n := range slices.Backward(nodes) {
		_ = n.await()
		defer n.give()
	}
	for _, n := range nodes {
		if err := n.refuse(); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		n.lift(n.claimant)
	}
	return nil
}

// CheckPath is [Guard.Check] for a node of a tree of resources. It does what [Guard.ClaimPath] does and has the same errors.
func (g *Guard) CheckPath(path string, t Token) error { return g.ClaimPath(path, t) }

// node is a node of a path and what the holder of the path's end is there.
type node struct {
	*mark

	resource string
	claimant
}

func (n *node) refuse() error {
	err := n.mark.refuse(n.resource, n.claimant)
	if stale, ok := errors.AsType[*StaleError](err); ok {
		stale.Read = false // the token is a writer's
	}
	return err
}

// CheckContext is [Guard.Check] with a context that ends the wait. The error then matches that of ctx, and the mark is
// unchanged.
func (g *Guard) CheckContext(ctx context.Context, resource string, t Token) error {
	return g.admit(resource, writer(t), func(m *mark) error { return m.take(ctx, resource) })
}

// Do checks t as [Guard.Check] does and runs fn if t is accepted. Check and fn are one atomic step for the resource: while fn
// runs t is the mark, no newer token is accepted and no other function runs for the resource.
//
// Do returns the error of fn. If fn fails or panics the mark stays raised. If t is refused, fn does not run and the errors are
// those of Check. If fn is nil, Do returns an error and the mark is unchanged.
//
// Newer tokens wait for fn, so bound its time, for example with the handle's context. When fn has returned, nothing that it
// started may still write. fn must not call Do for the same resource, nor Claim, Check or Load with a newer token, nor ClaimPath
// or CheckPath for a path with the resource: these calls wait for fn and would never return. [Guard.Marks] never waits. Safe for
// concurrent use.
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
	m, err := g.mark(resource, writer(t))
	if err != nil {
		return err
	}
	// A stale caller is refused without waiting for its successor's function.
	if err := m.refuse(resource, writer(t)); err != nil {
		return err
	}
	if err := take(m); err != nil {
		return err
	}
	defer m.give()
	if err := m.raise(resource, writer(t)); err != nil {
		return err
	}
	return fn()
}

// Marks returns a copy of all write marks. It does not wait for a function that [Guard.Do] is running. The function itself may
// call it and sees its own token as the mark. Marks reads one mark after the other: each is at least its value when Marks was
// called.
//
// To keep marks over a restart, save a mark before the write that it accepted, or in one transaction with it. A mark that is
// saved later can be lost in between, and the restarted Guard would accept a token that it had fenced. For the same reason
// save the marks before you answer a Claim. A saved mark whose write then fails does no harm. If two snapshots are saved
// concurrently, a saved mark must not go back. If there are readers, save the marks of [Guard.ReadMarks] too.
func (g *Guard) Marks() map[string]Token { return snapshot[Token](g, (*mark).load) }

// ReadMarks is [Guard.Marks] for the read marks.
func (g *Guard) ReadMarks() map[string]ReadToken {
	return snapshot[ReadToken](g, func(m *mark) Token { return Token(m.read.Load()) })
}

func snapshot[T ~int64](g *Guard, load func(*mark) Token) map[string]T {
	marks := make(map[string]T)
	for resource, m := range g.marks.Range {
		if t := load(m.(*mark)); t != 0 {
			marks[resource.(string)] = T(t)
		}
	}
	return marks
}

// Load raises the write marks to those of a snapshot by [Guard.Marks]. Call it before the Guard is used. Higher marks stay. If a
// token in the snapshot is not valid, Load changes no mark, and the error matches [ErrInvalidToken] and names the resource.
//
// Load is safe for concurrent use. It raises one mark after the other and waits for a function that [Guard.Do] is running for
// that resource.
func (g *Guard) Load(marks map[string]Token) error { return load(g, marks, writer) }

// LoadRead is [Guard.Load] for the read marks.
func (g *Guard) LoadRead(marks map[string]ReadToken) error { return load(g, marks, reader) }

func load[T ~int64](g *Guard, marks map[string]T, as func(T) claimant) error {
	for _, resource := range slices.Sorted(maps.Keys(marks)) { // sorted: the same error each time
		if err := g.validate(resource, as(marks[resource])); err != nil {
			return err
		}
	}
	for resource, t := range marks {
		m, err := g.mark(resource, as(t))
		if err != nil {
			return err
		}
		if own := m.of(as(t)); own.Load() < int64(t) {
			_ = m.await()
			m.lift(as(t)) // whatever the other mark is: the two may have been saved at different times
			m.give()
		}
	}
	return nil
}

// admit is Check; take waits for the turn.
func (g *Guard) admit(resource string, c claimant, take func(*mark) error) error {
	m, err := g.mark(resource, c)
	if err != nil {
		return err
	}
	if err := m.refuse(resource, c); err != nil || m.has(c) {
		return err
	}
	if err := take(m); err != nil {
		return err
	}
	defer m.give()
	return m.raise(resource, c)
}

// mark returns the resource's marks. If the claimant is the first one of the resource, its mark is raised already.
func (g *Guard) mark(resource string, c claimant) (*mark, error) {
	if err := g.validate(resource, c); err != nil {
		return nil, err
	}
	if m, ok := g.marks.Load(resource); ok {
		return m.(*mark), nil
	}
	// It is published with its token, so that the first one waits for nobody.
	first := &mark{turn: make(chan struct{}, 1)}
	first.lift(c)
	m, _ := g.marks.LoadOrStore(resource, first)
	return m.(*mark), nil
}

// find returns the resource's marks, which may be 0.
func (g *Guard) find(resource string) *mark {
	m, ok := g.marks.Load(resource)
	if !ok {
		m, _ = g.marks.LoadOrStore(resource, &mark{turn: make(chan struct{}, 1)})
	}
	return m.(*mark)
}

func (g *Guard) validate(resource string, c claimant) error {
	if len(resource) > MaxResource {
		return fmt.Errorf("fence: resource has %d bytes, want 0 to %d", len(resource), MaxResource)
	}
	if !c.Valid() {
		return fmt.Errorf("%w %d for %q: want %s", ErrInvalidToken, int64(c.Token), resource, legalToken)
	}
	return c.CheckEra(g.MaxEra)
}

func (m *mark) load() Token { return Token(m.highest.Load()) }

// refuse returns an error if the claimant is stale.
func (m *mark) refuse(resource string, c claimant) error {
	if highest := m.load(); c.Token < highest {
		return &StaleError{Resource: resource, Token: c.Token, Highest: highest, Read: c.read}
	}
	if highest := Token(m.read.Load()); !c.read && c.Token < highest {
		return &StaleError{Resource: resource, Token: c.Token, Highest: highest, ByReader: true}
	}
	return nil
}

// has reports whether the claimant is not stale and its mark need not be raised. The mark that has to be high enough is read
// first for a reader, and that which has to be low enough last for both: since marks only grow, all of it was true at once.
func (m *mark) has(c claimant) bool {
	if c.read {
		return Token(m.read.Load()) >= c.Token && m.load() <= c.Token
	}
	return m.load() == c.Token && Token(m.read.Load()) <= c.Token
}

// raise needs the turn, so that no mark changes between the comparison and the store.
func (m *mark) raise(resource string, c claimant) error {
	if err := m.refuse(resource, c); err != nil {
		return err
	}
	m.lift(c)
	return nil
}

// lift raises the claimant's mark, if it is lower. It needs the turn.
func (m *mark) lift(c claimant) {
	own := m.of(c)
	own.Store(max(own.Load(), int64(c.Token)))
}

// of returns the mark that the claimant raises.
func (m *mark) of(c claimant) *atomic.Int64 {
	if c.read {
		return &m.read
	}
	return &m.highest
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
