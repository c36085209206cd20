package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// Marks are the marks of a resource: that of writers, that of readers if it is higher, and the lock that the resource
// follows.
type Marks struct {
	Write, Read fence.Token
	Lock        string
}

// Verb is a verb of a store. By default it is for writers and raises their mark.
type Verb struct {
	Call   func(ctx context.Context, resource string) error
	Reads  bool // the token is a reader's
	Looks  bool // the verb raises no mark
	Moves  bool // the resource follows the token's lock from then on
	Writes bool // the verb writes "new" as the data
}

// VerbsOf returns the verbs that every store has, by their names.
func VerbsOf(claim, check, move, claimRead, checkRead func(ctx context.Context, resource string) error) map[string]Verb {
	return map[string]Verb{
		"Claim": {Call: claim}, "Check": {Call: check, Looks: true}, "Move": {Call: move, Moves: true},
		"ClaimRead": {Call: claimRead, Reads: true}, "CheckRead": {Call: checkRead, Reads: true},
	}
}

// Context returns the context of a holder who may call the verb. The token comes without a name if there is no lock, or
// if there are several.
func (v Verb) Context(ctx context.Context, token fence.Token, locks ...string) context.Context {
	if v.Reads {
		ctx = fence.NewReadContext(ctx, fence.ReadToken(token))
	} else {
		ctx = fence.NewContext(ctx, token)
	}
	if len(locks) == 0 {
		return ctx
	}
	return fence.WithLock(ctx, locks...)
}

// Holder is Context for the token of one lock, or without a name if lock is "".
func (v Verb) Holder(ctx context.Context, token fence.Token, lock string) context.Context {
	if lock == "" {
		return v.Context(ctx, token)
	}
	return v.Context(ctx, token, lock)
}

// Step is a call of a verb, for Watch.
type Step struct {
	Name          string
	Verb          Verb
	Lock          string // of the token; "" if it came without one
	Before, After Marks  // as they must be
	Err           error  // nil if it was accepted
}

// Rules test a store against the rules that all stores share.
type Rules struct {
	Verbs map[string]Verb // Claim, ClaimRead and others
	Lax   map[string]Verb // the same of a store that allows tokens without a name

	// Told records the hooks of both stores: each call must be reported once.
	Told Told

	// Marks returns the stored marks.
	Marks func(t *testing.T, resource string) Marks

	// Watch checks what only this store promises, unless it is nil: it is called before each verb, and the function
	// that it returns after the verb.
	Watch func(t *testing.T, resource string) func(Step)
}

// After is the rule: it returns the marks, or the refusal, after a verb was called with a token at a resource with
// these marks.
func (m Marks) After(v Verb, token fence.Token, lock string, lax bool) (Marks, error) {
	other := m.Lock != "" && lock != m.Lock && !v.Moves
	refused := &fence.OtherLockError{Token: token, Read: v.Reads, Lock: lock, Follows: m.Lock}
	switch {
	case other && lock != "":
		return m, refused
	case token < m.Write:
		return m, &fence.StaleError{Token: token, Highest: m.Write, Read: v.Reads}
	case !v.Reads && token < m.Read:
		return m, &fence.StaleError{Token: token, Highest: m.Read, ByReader: true}
	case other && !lax:
		return m, refused
	case v.Looks:
		return m, nil
	case v.Reads:
		m.Read = max(m.Read, token)
	default:
		m.Write = max(m.Write, token)
	}
	if m.Lock == "" || v.Moves {
		m.Lock = lock
	}
	return m.Normal(), nil
}

// Normal drops a read mark that refuses nobody. A store may keep such a mark.
func (m Marks) Normal() Marks {
	if m.Read <= m.Write {
		m.Read = 0
	}
	return m
}

// Decide calls each verb at each kind of marks with each kind of token: without a lock, of the lock that is followed,
// of another lock, and of two locks that were granted as one. It compares the answer and the marks with the rule.
func (r Rules) Decide(t *testing.T) {
	t.Helper()
	// A store that compared text would find 9 higher than 41, and 100 lower.
	writers, readers, both := []fence.Token{9, 40, 41, 100}, []fence.Token{9, 53, 54, 100}, []fence.Token{9, 40, 41, 53, 54, 100}
	for _, row := range []struct {
		before Marks
		tokens []fence.Token
	}{
		{Marks{}, []fence.Token{41}},
		{Marks{41, 0, ""}, writers},
		{Marks{0, 54, ""}, readers},
		{Marks{41, 54, ""}, both},
		{Marks{41, 0, "accounts"}, writers},
		{Marks{0, 54, "accounts"}, readers},
		{Marks{41, 54, "accounts"}, both},
	} {
		for _, token := range row.tokens {
			for _, locks := range [][]string{{}, {"accounts"}, {"report"}, {"accounts", "stock"}} {
				for name := range r.Verbs {
					r.decide(t, row.before, name, token, locks, false)
					if row.before.Lock != "" {
						r.decide(t, row.before, name, token, locks, true)
					}
				}
			}
		}
	}
}

func (r Rules) decide(t *testing.T, before Marks, name string, token fence.Token, locks []string, lax bool) {
	t.Helper()
	v, lock := r.Verbs[name], ""
	if lax {
		v = r.Lax[name]
	}
	if len(locks) == 1 {
		lock = locks[0]
	}
	if v.Moves && lock == "" {
		return // Refuse tests this
	}
	what := fmt.Sprintf("%s with %d of %q at %+v, tokens without a name allowed: %t", name, token, locks, before, lax)
	resource := r.have(t, before)
	after, want := before.After(v, token, lock, lax)
	tell := func(Step) {}
	if r.Watch != nil {
		tell = r.Watch(t, resource)
	}
	_, _ = r.Told.Last() // of have
	err := v.Call(v.Context(t.Context(), token, locks...), resource)
	got, toldErr := r.Told.Last()
	require.NoError(t, toldErr, what)
	require.True(t, strings.HasSuffix(got.Resource, resource), what)
	require.Equal(t, Event{fence.Access{Resource: got.Resource, Token: token, Read: v.Reads, Lock: lock}, err}, got, what)
	RequireRefusal(t, want, err, resource, what)
	require.Equal(t, after, r.Marks(t, resource).Normal(), what)
	tell(Step{name, v, lock, before, after, err})
}

// have returns the name of a new resource with these marks.
func (r Rules) have(t *testing.T, m Marks) string {
	t.Helper()
	resource := fmt.Sprint("resource ", resources.Add(1))
	for _, c := range []struct {
		verb  string
		token fence.Token
	}{{"Claim", m.Write}, {"ClaimRead", m.Read}} {
		if c.token == 0 {
			continue
		}
		v := r.Verbs[c.verb]
		require.NoError(t, v.Call(v.Holder(t.Context(), c.token, m.Lock), resource))
	}
	return resource
}

// RequireRefusal compares an error with want, which has no resource: a store's name of the resource may be longer, but
// ends in resource.
func RequireRefusal(t *testing.T, want, err error, resource, what string) {
	t.Helper()
	of, refusal := split(err)
	require.Equal(t, want, refusal, what)
	if want != nil {
		require.True(t, strings.HasSuffix(of, resource), "%s: %v", what, err)
		require.NotEqual(t, errors.Is(err, fence.ErrStale), errors.Is(err, fence.ErrOtherLock), what)
	}
}

// split returns the resource of a refusal and the refusal without it, or another error as it is.
func split(err error) (resource string, bare error) {
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		bare := *stale
		bare.Resource = ""
		return stale.Resource, &bare
	}
	if other, ok := errors.AsType[*fence.OtherLockError](err); ok {
		bare := *other
		bare.Resource = ""
		return other.Resource, &bare
	}
	return "", err
}

// Names tests that names of locks and resources are compared byte by byte, whatever they look like. longest is the
// length of the longest resource in bytes.
func (r Rules) Names(t *testing.T, longest int) {
	t.Helper()
	claim, claimRead := r.Verbs["Claim"], r.Verbs["ClaimRead"]
	long := strings.Repeat("é", fence.MaxLock/2)
	names := []string{
		"a", "A", "a ", " a", "a b", " ", "\n", "a\nb", "a\n", "%s", "ä", "a\u0308", "日本", "{orders}", `a'"\`, "a?$1", "a/~b/~c",
		"0", "60", " 60", "60 ", "54 60", "54 0 a", "@", " @", "a b @ c", "00000000000000000060", " 00000000000000000060",
		"@00000000000000000060", "a b\n é 0001 a ", long, long[2:], long[2:] + "  ",
	}
	for _, name := range names {
		resource := r.have(t, Marks{41, 0, name})
		for _, other := range names {
			if other != name {
				want := &fence.OtherLockError{Token: 100, Lock: other, Follows: name}
				RequireRefusal(t, want, claim.Call(claim.Context(t.Context(), 100, other), resource), resource, other)
			}
		}
		for _, token := range []fence.Token{54, 60} {
			require.NoError(t, claimRead.Call(claimRead.Context(t.Context(), token, name), resource), "%q", name)
			require.Equal(t, Marks{41, token, name}, r.Marks(t, resource))
		}
		require.NoError(t, claim.Call(claim.Context(t.Context(), 100, name), resource), "%q", name)
		require.Equal(t, Marks{100, 0, name}, r.Marks(t, resource).Normal())
		want := &fence.StaleError{Token: 99, Highest: 100}
		RequireRefusal(t, want, claim.Call(claim.Context(t.Context(), 99, name), resource), resource, name)
	}
	n := fmt.Sprint(resources.Add(1), " ")
	for i, resource := range []string{"a", "b", "aa", "A", "a/b", "a:", "a ", "ä", "a'", `a"\`, "a?$1", strings.Repeat("r", longest-len(n))} {
		require.NoError(t, claim.Call(claim.Context(t.Context(), 41), n+resource), "%d: an older token at another resource", i)
		require.NoError(t, claim.Call(claim.Context(t.Context(), 54), n+resource))
	}
}

// Refuse calls verbs with input that must be refused before anything is sent; the caller's store fails the test if
// something is. The store accepts eras up to [fence.DefaultMaxEra]. resources are illegal names, each with a part of
// its error.
func Refuse(t *testing.T, verbs map[string]Verb, resources map[string]string) {
	t.Helper()
	for name, v := range verbs {
		refuses := func(ctx context.Context, want string) {
			t.Helper()
			err := v.Call(ctx, "orders")
			require.ErrorIs(t, err, fence.ErrInvalidToken, name)
			require.ErrorContains(t, err, want, name)
			require.Regexp(t, "^[a-z0-9]+fence: ", err, name)
		}
		mine, others, wants := "a writer's", v, "the context of a lock"
		others.Reads = !v.Reads
		if v.Reads {
			mine, wants = "a reader's", "the context of a read lock"
		}
		other := map[string]string{"a writer's": "a reader's", "a reader's": "a writer's"}[mine]
		refuses(t.Context(), "the context carries none, want "+wants)
		for _, token := range []fence.Token{0, -1, 1 << 48} {
			refuses(v.Context(others.Context(t.Context(), 41, "accounts"), token, "accounts"), "the context carries none, want "+wants)
		}
		refuses(others.Context(v.Context(t.Context(), 41, "accounts"), 54, "accounts"), "the context carries "+other+", want "+wants)
		refuses(v.Context(t.Context(), math.MaxInt64, "accounts"), "9223372036854775807: its era is 32767, want 0 to 15")
		refuses(v.Context(t.Context(), 16<<48|1, "accounts"), "raise MaxEra")
		for lock, want := range map[string]string{
			"":                        "its lock's name has 0 bytes, want 1 to 2304",
			strings.Repeat("l", 2305): "its lock's name has 2305 bytes, want 1 to 2304",
			"a\x00":                   `its lock's name is "a\x00", want UTF-8 without NUL`,
			"\xff":                    `its lock's name is "\xff", want UTF-8 without NUL`,
		} {
			refuses(v.Context(t.Context(), 54, lock), want)
		}
		if v.Moves {
			refuses(v.Context(t.Context(), 54), "name")
			refuses(v.Context(t.Context(), 54, "accounts", "stock"), "name")
		}
		for resource, want := range resources {
			err := v.Call(v.Context(t.Context(), 54, "accounts"), resource)
			require.ErrorContains(t, err, want, name)
			require.NotErrorIs(t, err, fence.ErrInvalidToken)
			require.Less(t, len(err.Error()), 250, "the whole value is in the error")
		}
	}
}

// Told records calls of a store's hooks. Make it with room for some.
type Told chan Event

// Event is a call of a hook. Err is nil if the token was accepted.
type Event struct {
	fence.Access

	Err error
}

// Hooks returns the hooks for the store's options.
func (t Told) Hooks() *fence.Hooks {
	add := func(e Event) {
		select {
		case t <- e:
		default: // nobody looks at so many
		}
	}
	return &fence.Hooks{
		Accepted: func(_ context.Context, a fence.Access) { add(Event{a, nil}) },
		Refused:  func(_ context.Context, a fence.Access, err error) { add(Event{a, err}) },
	}
}

// Last returns the one event since the last call. It fails if there is none, or more than one.
func (t Told) Last() (last Event, err error) {
	n := len(t)
	for range n {
		last = <-t
	}
	if n != 1 {
		err = fmt.Errorf("the hooks were called %d times, want 1; the last is %v", n, last)
	}
	return last, err
}
