package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// anytime is the context of the verbs without one.
var anytime = context.Background()

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
	return g.admit(resource, bid{ctx: anytime, claimant: writer(t), lock: lock, moving: true}, nil)
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
	if b.named || b.moving {
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
