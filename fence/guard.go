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

// ErrStale reports that a newer token has reached the resource. The caller has lost its lock, and the resource accepts
// nothing more with the same token. The error is a [*StaleError].
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

// Guard refuses stale tokens for resources in this process. It has two marks for each resource: the write mark is the
// highest token of a writer that it has accepted, the read mark that of a reader. Marks only grow. A writer is stale if
// its token is older than one of the two, a reader if its token is older than the write mark. So readers do not refuse
// each other.
//
// Tokens order the grants of one lock only, so a resource follows one lock: that of the first accepted token that comes
// with a lock's name; see [WithLock]. Tokens of other locks are refused with an [*OtherLockError] until [Guard.Move].
// The verbs with a context take the name from it. The verbs without a context know no name: their caller must know that
// the token is of the resource's lock.
//
// The zero value is ready for use and has no marks. A Guard is safe for concurrent use and must not be copied after its
// first use. It never deletes the mark of a resource, so the service and not its clients should choose the names. A
// name has at most [MaxResource] bytes.
type Guard struct {
	// MaxEra is the highest era that is accepted, 0 for [DefaultMaxEra]; see [Token.CheckEra]. Do not change it after
	// the first use.
	MaxEra uint16

	// AllowUnnamed makes the verbs with a context accept tokens that come without the name of a lock, for example those
	// of older clients, at a resource that follows a lock. By default they are refused with an [*OtherLockError]. Do
	// not change it after the first use.
	AllowUnnamed bool

	// Hooks are called when a token was accepted or refused. Do not change them after the first use.
	Hooks *Hooks

	marks sync.Map // string → *mark; nothing is ever deleted
}

// anytime is the context of the verbs without one.
var anytime = context.Background()

// mark is the write mark and the read mark of one resource, and the lock that it follows.
//
// A comparison does not need the turn. A change of the marks does.
type mark struct {
	turn  chan struct{} // full while a mark is being raised and while a function of Do runs
	marks atomic.Pointer[marks]
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

	named  bool   // the token came with the name of a lock
	lock   string // "" without a name
	strict bool   // a token without a name is refused at a resource that follows a lock
	moving bool   // the resource is to follow this lock
}

func (b bid) access(resource string) Access {
	return Access{Resource: resource, Token: b.Token, Read: b.read, Lock: b.lock}
}

// bare is the bid of a verb without a context.
func bare(c claimant) bid { return bid{ctx: anytime, claimant: c} }

// with is the bid of a verb with a context. The name in ctx counts only if ctx carries this very token.
func (g *Guard) with(ctx context.Context, c claimant) bid {
	b := bid{ctx: ctx, claimant: c, strict: !g.AllowUnnamed}
	if t := carried(ctx); t != nil && t.token == c {
		b.lock, b.named = LockFromContext(ctx)
	}
	return b
}

// Claim starts a tenure. Call it once after a grant, before the first read of the resource: until then the mark does
// not refuse the predecessor. Repeating it is safe.
//
// On success t is the mark and the Guard accepts no older token. Claim waits for a function that [Guard.Do] runs with
// an older token. On failure the mark is unchanged. The error is a [*StaleError] if t is older than a mark, and
// matches [ErrInvalidToken] if t is not valid. Safe for concurrent use.
func (g *Guard) Claim(resource string, t Token) error {
	return g.admit(resource, bare(writer(t)))
}

// Check reports whether t may still write to the resource. It accepts a token that equals the mark. A newer token
// raises the mark, since the mark must be the newest token that the resource has seen, even if its holder has not
// claimed (HDFS's JournalNode does this with the epoch of any request). So Check does what [Guard.Claim] does and has
// the same errors; in a store the two differ.
//
// The answer can be out of date when Check returns: use it to refuse early, and [Guard.Do] to write. Check does not
// wait if t is stale or equals the mark. A newer token waits for a function that [Guard.Do] is running. Safe for
// concurrent use.
func (g *Guard) Check(resource string, t Token) error {
	return g.admit(resource, bare(writer(t)))
}

// ClaimRead starts the tenure of a reader. Call it once after a grant, before the first read of the resource: until
// then the marks do not refuse a writer that held the lock before, and it could write while the reader reads. Repeating
// it is safe.
//
// On success the read mark is at least t and the Guard accepts no older token of a writer. ClaimRead waits for a
// function that [Guard.Do] runs with an older token. On failure the marks are unchanged. The error is a [*StaleError]
// if t is older than the write mark, and matches [ErrInvalidToken] if t is not valid. Safe for concurrent use.
func (g *Guard) ClaimRead(resource string, t ReadToken) error {
	return g.admit(resource, bare(reader(t)))
}

// CheckRead reports whether t may still read the resource: it is not older than the write mark. It raises the read
// mark, even if its holder has not claimed, as [Guard.Check] raises the write mark. So it does what [Guard.ClaimRead]
// does and has the same errors.
//
// Call it after a read, before the result is used: if it accepts t, no newer writer was accepted before, so the result
// is what t's lock protects. This does not protect a value that is written elsewhere later: pass the token along and
// check it where the value is written. Safe for concurrent use.
func (g *Guard) CheckRead(resource string, t ReadToken) error {
	return g.admit(resource, bare(reader(t)))
}

// CheckReadContext is [Guard.CheckRead] with a context that ends the wait and has the name of the token's lock. If ctx
// ends, the error matches that of ctx, and the marks are unchanged. The error is an [*OtherLockError] if the token is
// of another lock.
func (g *Guard) CheckReadContext(ctx context.Context, resource string, t ReadToken) error {
	return g.admit(resource, g.with(ctx, reader(t)))
}

// ClaimPath is [Guard.Claim] for a node of a tree of resources, with the token of a lock on that node. It also fences
// earlier holders of the nodes above and below, and nobody on other branches. A path has a node at each slash and at
// its end: the nodes of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success t is the write mark of the path's end, and the read marks of the nodes above are at least t, as if t were
// a reader's there. t is refused if it is older than one of the two marks of the end, or than the write mark of a node
// above. On failure no mark is changed, and the error names the node. ClaimPath waits for functions that [Guard.Do]
// runs at any of the nodes.
func (g *Guard) ClaimPath(path string, t Token) error {
	b := bare(writer(t))
	if err := g.validate(path, b); err != nil {
		return err
	}
	err := g.claimPath(path, t)
	g.Hooks.Tell(b.ctx, b.access(path), err)
	return err
}

func (g *Guard) claimPath(path string, t Token) error {
	var nodes []*node
	for i := range len(path) + 1 {
		if i == len(path) || path[i] == '/' {
			nodes = append(nodes, &node{g.find(path[:i]), path[:i], bare(claimant{t, i < len(path)})})
		}
	}
	settled := true
	for _, n := range nodes {
		now := n.marks.Load()
		if err := n.refuse(now); err != nil {
			return err
		}
		settled = settled && now.has(n.bid)
	}
	if settled {
		return nil
	}
	// The turns are taken from the path's end up, so a claim that waits for a function at its end does not delay other
	// branches. Two paths take the nodes that they share in the same order, so there is no deadlock.
	for _, n := range slices.Backward(nodes) {
		n.await()
		defer n.give()
	}
	for _, n := range nodes {
		if err := n.refuse(n.marks.Load()); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		n.lift(n.bid)
	}
	return nil
}

// CheckPath is [Guard.Check] for a node of a tree of resources. It does what [Guard.ClaimPath] does and has the same
// errors.
func (g *Guard) CheckPath(path string, t Token) error { return g.ClaimPath(path, t) }

// node is a node of a path, and the bid there: a writer's at the path's end, like a reader's above.
type node struct {
	*mark

	resource string
	bid
}

func (n *node) refuse(now *marks) error {
	err := now.refuse(n.resource, n.bid)
	if stale, ok := errors.AsType[*StaleError](err); ok {
		stale.Read = false // the token is a writer's
	}
	return err
}

// CheckContext is [Guard.Check] with a context that ends the wait and has the name of the token's lock. If ctx ends,
// the error matches that of ctx, and the mark is unchanged. The error is an [*OtherLockError] if the token is of
// another lock.
func (g *Guard) CheckContext(ctx context.Context, resource string, t Token) error {
	return g.admit(resource, g.with(ctx, writer(t)))
}

// Move makes the resource follow the lock with this name, and claims it with t, a token of that lock; see
// [Guard.Claim]. From then on tokens of the lock that the resource followed before are refused. Call it when writers
// change to another lock, before they write under it. The error is a [*StaleError] if t is older than a mark: take a
// new grant of the lock, or raise its era if it is in another cluster. The error matches [ErrInvalidToken] if t is not
// valid or [CheckLock] refuses the name. On failure nothing is changed.
func (g *Guard) Move(resource string, t Token, lock string) error {
	return g.admit(resource, bid{ctx: anytime, claimant: writer(t), lock: lock, moving: true})
}

// Do checks t as [Guard.Check] does and runs fn if t is accepted. Check and fn are one atomic step for the resource:
// while fn runs t is the mark, no newer token is accepted and no other function runs for the resource.
//
// Do returns the error of fn. If fn fails or panics the mark stays raised. If t is refused, fn does not run and the
// errors are those of Check. If fn is nil, Do returns an error and the mark is unchanged.
//
// Newer tokens wait for fn, so bound its time, for example with the handle's context. When fn has returned, nothing
// that it started may still write. fn must not call Do for the same resource, nor Claim, Check or Load with a newer
// token or with the first name of a lock, nor ClaimPath or CheckPath for a path with the resource: these calls wait for
// fn and would never return. [Guard.Marks] never waits. Safe for concurrent use.
func (g *Guard) Do(resource string, t Token, fn func() error) error {
	return g.do(resource, bare(writer(t)), fn)
}

// DoContext is [Guard.Do] with a context that ends the wait for the turn and has the name of the token's lock. If ctx
// ends, fn does not run, the error matches that of ctx, and the mark is unchanged. Once fn runs, DoContext does not use
// ctx. The error is an [*OtherLockError] if the token is of another lock.
func (g *Guard) DoContext(ctx context.Context, resource string, t Token, fn func() error) error {
	return g.do(resource, g.with(ctx, writer(t)), fn)
}

// do is Do; the wait for the turn ends with the bid's context.
func (g *Guard) do(resource string, b bid, fn func() error) error {
	if fn == nil {
		return fmt.Errorf("fence: do for %q: fn is nil, want a function", resource)
	}
	if g.Hooks == nil {
		return g.run(resource, b, fn)
	}
	ran := false
	err := g.run(resource, b, func() error {
		ran = true
		return fn()
	})
	if ran {
		g.Hooks.Tell(b.ctx, b.access(resource), nil)
	} else {
		g.Hooks.Tell(b.ctx, b.access(resource), err)
	}
	return err
}

// run is do without the hooks.
func (g *Guard) run(resource string, b bid, fn func() error) error {
	m, err := g.mark(resource, b)
	if err != nil {
		return err
	}
	// A stale caller is refused without waiting for its successor's function.
	if err := m.refuse(resource, b); err != nil {
		return err
	}
	if err := m.take(b.ctx, resource); err != nil {
		return err
	}
	defer m.give()
	if err := m.raise(resource, b); err != nil {
		return err
	}
	return fn()
}

// Marks returns a copy of all write marks. It does not wait for a function that [Guard.Do] is running. The function
// itself may call it and sees its own token as the mark. Marks reads one mark after the other: each is at least its
// value when Marks was called.
//
// To keep marks over a restart, save a mark before the write that it accepted, or in one transaction with it. A mark
// that is saved later can be lost in between, and the restarted Guard would accept a token that it had fenced. For the
// same reason save the marks before you answer a Claim. A saved mark whose write then fails does no harm. If two
// snapshots are saved concurrently, a saved mark must not go back. If there are readers, save the marks of
// [Guard.ReadMarks] too.
func (g *Guard) Marks() map[string]Token {
	return snapshot(g, func(m *marks) Token { return m.write })
}

// ReadMarks is [Guard.Marks] for the read marks.
func (g *Guard) ReadMarks() map[string]ReadToken {
	return snapshot(g, func(m *marks) ReadToken { return ReadToken(m.read) })
}

// Locks is [Guard.Marks] for the names of the locks that the resources follow.
func (g *Guard) Locks() map[string]string {
	return snapshot(g, func(m *marks) string { return m.lock })
}

// snapshot returns the values that are not zero.
func snapshot[T comparable](g *Guard, of func(*marks) T) map[string]T {
	all := make(map[string]T)
	var zero T
	for resource, m := range g.marks.Range {
		if v := of(m.(*mark).marks.Load()); v != zero {
			all[resource.(string)] = v
		}
	}
	return all
}

// Load raises the write marks to those of a snapshot by [Guard.Marks]. Call it before the Guard is used. Higher marks
// stay. If a token in the snapshot is not valid, Load changes no mark, and the error matches [ErrInvalidToken] and
// names the resource.
//
// Load is safe for concurrent use. It raises one mark after the other and waits for a function that [Guard.Do] is
// running for that resource.
func (g *Guard) Load(marks map[string]Token) error { return load(g, marks, writer) }

// LoadRead is [Guard.Load] for the read marks.
func (g *Guard) LoadRead(marks map[string]ReadToken) error { return load(g, marks, reader) }

func load[T ~int64](g *Guard, marks map[string]T, as func(T) claimant) error {
	for _, resource := range slices.Sorted(maps.Keys(marks)) { // sorted: the same error each time
		if err := g.validate(resource, bare(as(marks[resource]))); err != nil {
			return err
		}
	}
	for resource, t := range marks {
		b := bare(as(t))
		m, err := g.mark(resource, b)
		if err != nil {
			return err
		}
		if m.marks.Load().of(b.claimant) < b.Token {
			m.await()
			m.lift(b) // without a comparison with the other mark: the two may have been saved at different times
			m.give()
		}
	}
	return nil
}

// LoadLocks makes the resources follow the locks of a snapshot by [Guard.Locks], as [Guard.Load] raises the marks. A
// resource that already follows a lock keeps it.
func (g *Guard) LoadLocks(locks map[string]string) error {
	for _, resource := range slices.Sorted(maps.Keys(locks)) {
		if err := checkResource(resource); err != nil {
			return err
		}
		if err := CheckLock(locks[resource]); err != nil {
			return fmt.Errorf("fence: resource %q: %w", resource, err)
		}
	}
	for resource, lock := range locks {
		m := g.find(resource)
		m.await()
		m.lift(bid{lock: lock})
		m.give()
	}
	return nil
}

// admit is Check; the wait for the turn ends with the bid's context.
func (g *Guard) admit(resource string, b bid) error {
	m, err := g.mark(resource, b)
	if err != nil {
		return err
	}
	now := m.marks.Load()
	if err = now.refuse(resource, b); err == nil && !now.has(b) {
		if err = m.take(b.ctx, resource); err != nil {
			return err
		}
		err = m.raise(resource, b)
		m.give()
	}
	g.Hooks.Tell(b.ctx, b.access(resource), err)
	return err
}

// mark returns the marks of a legal resource.
func (g *Guard) mark(resource string, b bid) (*mark, error) {
	if err := g.validate(resource, b); err != nil {
		return nil, err
	}
	return g.find(resource), nil
}

// find returns the marks of the resource. It adds empty ones if there are none.
func (g *Guard) find(resource string) *mark {
	m, ok := g.marks.Load(resource)
	if !ok {
		m, _ = g.marks.LoadOrStore(resource, newMark())
	}
	return m.(*mark)
}

func newMark() *mark {
	m := &mark{turn: make(chan struct{}, 1)}
	m.marks.Store(&marks{})
	return m
}

func (g *Guard) validate(resource string, b bid) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	if !b.Valid() {
		return fmt.Errorf("%w %d for %q: want %s", ErrInvalidToken, int64(b.Token), resource, legalToken)
	}
	if b.named || b.moving {
		if err := CheckLock(b.lock); err != nil {
			return err
		}
	}
	return b.CheckEra(g.MaxEra)
}

func checkResource(resource string) error {
	if len(resource) > MaxResource {
		return fmt.Errorf("fence: resource has %d bytes, want 0 to %d", len(resource), MaxResource)
	}
	return nil
}

// refuse returns an error if the bid's token is of another lock or stale. A stale token without a name is reported as
// stale: that is certain, and its lock is not.
func (m *mark) refuse(resource string, b bid) error { return m.marks.Load().refuse(resource, b) }

func (m *marks) refuse(resource string, b bid) error {
	other := m.lock != "" && b.lock != m.lock && !b.moving
	switch {
	case other && b.lock != "":
	case b.Token < m.write:
		return &StaleError{Resource: resource, Token: b.Token, Highest: m.write, Read: b.read}
	case !b.read && b.Token < m.read:
		return &StaleError{Resource: resource, Token: b.Token, Highest: m.read, ByReader: true}
	case !other || !b.strict:
		return nil
	}
	return &OtherLockError{Resource: resource, Token: b.Token, Read: b.read, Lock: b.lock, Follows: m.lock}
}

// has reports whether a bid that is not refused changes nothing.
func (m *marks) has(b bid) bool { return m.lifted(b) == *m }

// raise needs the turn, so that no mark changes between the comparison and the store.
func (m *mark) raise(resource string, b bid) error {
	if err := m.refuse(resource, b); err != nil {
		return err
	}
	m.lift(b)
	return nil
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

// of returns the mark that the claimant raises.
func (m *marks) of(c claimant) Token {
	if c.read {
		return m.read
	}
	return m.write
}

// await waits for the turn without limit. The caller gives the turn back.
func (m *mark) await() { m.turn <- struct{}{} }

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
