package fence

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// MaxResource is the longest name of a resource, in bytes.
const MaxResource = 1024

// Guard refuses stale tokens for resources in this process. It has two marks for each resource: the write mark is the
// highest token of a writer that it has accepted, the read mark that of a reader. Marks only grow. A writer is stale if
// its token is older than one of the two, a reader if its token is older than the write mark. So readers do not refuse
// each other.
//
// A resource follows one lock, see the package's documentation. The verbs with a context take the lock's name from it.
// The verbs without a context know no name: their caller must know that the token is of the resource's lock.
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
// matches [ErrInvalidToken] if t is not valid.
func (g *Guard) Claim(resource string, t Token) error {
	return g.admit(resource, bare(writer(t)), nil)
}

// Check reports whether t may still write to the resource. It accepts a token that equals the mark. A newer token
// raises the mark, since the mark must be the newest token that the resource has seen, even if its holder has not
// claimed (HDFS's JournalNode does this with the epoch of any request). So Check does what [Guard.Claim] does and has
// the same errors; in a store the two differ.
//
// The answer can be out of date when Check returns: use it to refuse early, and [Guard.Do] to write. Check does not
// wait if t is stale or equals the mark. A newer token waits for a function that [Guard.Do] is running.
func (g *Guard) Check(resource string, t Token) error {
	return g.admit(resource, bare(writer(t)), nil)
}

// CheckContext is [Guard.Check] with a context that ends the wait and has the name of the token's lock. If ctx ends,
// the error matches that of ctx, and the mark is unchanged. The error is an [*OtherLockError] if the token is of
// another lock. The first token with a name waits as a newer token does, even if it equals the mark: so the function of
// a [Guard.Do] without a context must not call CheckContext for its resource.
func (g *Guard) CheckContext(ctx context.Context, resource string, t Token) error {
	return g.admit(resource, g.with(ctx, writer(t)), nil)
}

// ClaimRead starts the tenure of a reader. Call it once after a grant, before the first read of the resource: until
// then the marks do not refuse a writer that held the lock before, and it could write while the reader reads. Repeating
// it is safe.
//
// On success the read mark is at least t and the Guard accepts no older token of a writer. ClaimRead waits for a
// function that [Guard.Do] runs with an older token. On failure the marks are unchanged. The error is a [*StaleError]
// if t is older than the write mark, and matches [ErrInvalidToken] if t is not valid.
func (g *Guard) ClaimRead(resource string, t ReadToken) error {
	return g.admit(resource, bare(reader(t)), nil)
}

// CheckRead reports whether t may still read the resource: it is not older than the write mark. It raises the read
// mark, even if its holder has not claimed, as [Guard.Check] raises the write mark. So it does what [Guard.ClaimRead]
// does and has the same errors.
//
// Call it after a read, before the result is used: if it accepts t, no newer writer was accepted before, so the result
// is what t's lock protects. This does not protect a value that is written elsewhere later: pass the token along and
// check it where the value is written.
func (g *Guard) CheckRead(resource string, t ReadToken) error {
	return g.admit(resource, bare(reader(t)), nil)
}

// CheckReadContext is [Guard.CheckRead] with a context that ends the wait and has the name of the token's lock. If ctx
// ends, the error matches that of ctx, and the marks are unchanged. The error is an [*OtherLockError] if the token is
// of another lock.
func (g *Guard) CheckReadContext(ctx context.Context, resource string, t ReadToken) error {
	return g.admit(resource, g.with(ctx, reader(t)), nil)
}

// Move makes the resource follow the lock with this name, and claims it with t, a token of that lock; see
// [Guard.Claim]. From then on tokens of the lock that the resource followed before are refused. Call it when writers
// change to another lock, before they write under it. The error is a [*StaleError] if t is older than a mark: take a
// new grant of the lock, or raise its era if it is in another cluster. The error matches [ErrInvalidToken] if t is not
// valid or [CheckLock] refuses the name. On failure nothing is changed.
func (g *Guard) Move(resource string, t Token, lock string) error {
	b := bare(writer(t))
	b.named, b.lock, b.moving = true, lock, true
	return g.admit(resource, b, nil)
}

// Do checks t as [Guard.Check] does and runs fn if t is accepted. Check and fn are one atomic step for the resource:
// while fn runs t is the mark, no newer token is accepted and no other function runs for the resource.
//
// Do returns the error of fn. If fn fails or panics the mark stays raised. If t is refused, fn does not run and the
// errors are those of Check. If fn is nil, Do returns an error and the mark is unchanged.
//
// Newer tokens wait for fn, so bound its time, for example with the handle's context. When fn has returned, nothing
// that it started may still write. fn must not call Do for the same resource, nor a verb that would change its marks,
// such as Claim, ClaimRead or Load with a newer token, Move, or ClaimPath for a path with the resource: these calls
// wait for fn and would never return. [Guard.Marks] never waits.
func (g *Guard) Do(resource string, t Token, fn func() error) error {
	return g.do(resource, bare(writer(t)), fn)
}

// DoContext is [Guard.Do] with a context that ends the wait for the turn and has the name of the token's lock. If ctx
// ends, fn does not run, the error matches that of ctx, and the mark is unchanged. Once fn runs, DoContext does not use
// ctx. The error is an [*OtherLockError] if the token is of another lock.
func (g *Guard) DoContext(ctx context.Context, resource string, t Token, fn func() error) error {
	return g.do(resource, g.with(ctx, writer(t)), fn)
}

func (g *Guard) do(resource string, b bid, fn func() error) error {
	if fn == nil {
		return fmt.Errorf("fence: do for %q: fn is nil, want a function", resource)
	}
	return g.admit(resource, b, fn)
}

// admit is Check, or Do if fn is not nil. The wait for the turn ends with the bid's context.
func (g *Guard) admit(resource string, b bid, fn func() error) error {
	ran, err := false, g.validate(resource, b)
	if err == nil {
		ran, err = g.find(resource).accept(resource, b, fn)
	}
	if ran {
		g.Hooks.Tell(b.ctx, b.access(resource), nil)
	} else {
		g.Hooks.Tell(b.ctx, b.access(resource), err)
	}
	return err
}

// find returns the marks of the resource. It adds empty ones if there are none.
func (g *Guard) find(resource string) *mark {
	m, ok := g.marks.Load(resource)
	if !ok {
		m, _ = g.marks.LoadOrStore(resource, newMark())
	}
	return m.(*mark)
}

func (g *Guard) validate(resource string, b bid) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	if !b.Valid() {
		return fmt.Errorf("%w %d for %q: want %s", ErrInvalidToken, int64(b.Token), resource, legalToken)
	}
	if b.named {
		if err := CheckLock(b.lock); err != nil {
			return err
		}
	}
	if err := CheckMaxEra("fence: Guard.MaxEra", g.MaxEra); err != nil {
		return err
	}
	return b.CheckEra(g.MaxEra)
}

func checkResource(resource string) error {
	if len(resource) > MaxResource {
		return fmt.Errorf("fence: resource has %d bytes, want 0 to %d", len(resource), MaxResource)
	}
	return nil
}

// Marks returns a copy of all write marks. It does not wait for a function that [Guard.Do] is running. The function
// itself may call it and sees its own token as the mark. Marks reads one mark after the other: each is at least its
// value when Marks was called.
//
// To keep marks over a restart, save a mark before the write that it accepted, or in one transaction with it. A mark
// that is saved later can be lost in between, and the restarted Guard would accept a token that it had fenced. For the
// same reason save the marks before you answer a Claim. A saved mark whose write then fails does no harm. If two
// snapshots are saved concurrently, a saved mark must not go back. If there are readers, save the marks of
// [Guard.ReadMarks] too. If tokens come with the names of locks, save [Guard.Locks] too, and load them with
// [Guard.LoadLocks]: otherwise the restarted Guard follows the lock of the first token that comes.
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
// Load raises one mark after the other and waits for a function that [Guard.Do] is running for that resource.
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
		g.find(resource).load(bare(as(t)))
	}
	return nil
}

// LoadLocks makes the resources follow the locks of a snapshot by [Guard.Locks], as [Guard.Load] raises the marks. A
// resource that already follows a lock keeps it. If [CheckLock] refuses a name, LoadLocks changes nothing, and the error
// names the resource.
func (g *Guard) LoadLocks(locks map[string]string) error {
	for _, resource := range slices.Sorted(maps.Keys(locks)) {
		if err := checkResource(resource); err != nil {
			return err
		}
		if err := CheckLock(locks[resource]); err != nil {
			return fmt.Errorf("%w (resource %q)", err, resource)
		}
	}
	for resource, lock := range locks {
		g.find(resource).load(bid{lock: lock})
	}
	return nil
}

// ClaimPath is [Guard.Claim] for a node of a tree of resources, with the token of a lock on that node. It also fences
// earlier holders of the nodes above and below, and nobody on other branches. A path has a node at each slash and at
// its end: the nodes of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success t is the write mark of the path's end, and the read marks of the nodes above are at least t, as if t were
// a reader's there. The error is a [*StaleError] that names the node if t is older than the write mark of a node, or
// than the read mark of the path's end. A refusal changes nothing, unless a newer token comes during the call: then some
// of the nodes may have been claimed. ClaimPath waits for functions that [Guard.Do] runs at any of the nodes of the path,
// and not for those at nodes below its end.
//
// Only ClaimPath and CheckPath look at the nodes above. [Guard.Do] and [Guard.Check] of a path's end do not: they accept
// the token of a holder that a claim of a node above has fenced. So hold a mutex of the resource during ClaimPath, and
// during CheckPath and the write after it.
func (g *Guard) ClaimPath(path string, t Token) error {
	b := bare(writer(t))
	err := g.validate(path, b)
	if err == nil {
		err = g.claimPath(path, t)
	}
	g.Hooks.Tell(b.ctx, b.access(path), err)
	return err
}

// claimPath has the turn of one node at a time: a function of Do at one node may use the others, and a claim that waits
// for a function delays no other branch. Marks that it has raised before a refusal harm nobody: the lock was granted to
// t, so those that they refuse had lost it before.
func (g *Guard) claimPath(path string, t Token) error {
	// each calls do for the nodes, with a bid that is like a reader's above the path's end, until do returns an error.
	each := func(do func(m *mark, resource string, b bid) error) error {
		for i := range len(path) + 1 {
			if i == len(path) || path[i] == '/' {
				b := bare(claimant{t, i < len(path)})
				b.above = b.read
				if err := do(g.find(path[:i]), path[:i], b); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err := each((*mark).refuse) // a token that is stale already raises nothing
	if err == nil {
		err = each(func(m *mark, resource string, b bid) error {
			_, err := m.accept(resource, b, nil)
			return err
		})
	}
	if err != nil {
		return err
	}
	return each((*mark).refuse) // a newer holder may have come to one node while t waited at another
}

// CheckPath is [Guard.Check] for a node of a tree of resources. It does what [Guard.ClaimPath] does and has the same
// errors.
func (g *Guard) CheckPath(path string, t Token) error { return g.ClaimPath(path, t) }
