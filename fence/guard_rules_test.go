package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// writing and reading pass the token of the context to a verb.
func writing(verb func(context.Context, string, fence.Token) error) func(context.Context, string) error {
	return func(ctx context.Context, resource string) error {
		token, _ := fence.FromContext(ctx)
		return verb(ctx, resource, token)
	}
}

func reading(verb func(context.Context, string, fence.ReadToken) error) func(context.Context, string) error {
	return func(ctx context.Context, resource string) error {
		token, _ := fence.ReadFromContext(ctx)
		return verb(ctx, resource, token)
	}
}

// bare adapts a verb without a context.
func bare[T any](verb func(string, T) error) func(context.Context, string, T) error {
	return func(_ context.Context, resource string, t T) error { return verb(resource, t) }
}

func marksOf(g *fence.Guard, resource string) fencetest.Marks {
	return fencetest.Marks{Write: g.Marks()[resource], Read: fence.Token(g.ReadMarks()[resource]), Lock: g.Locks()[resource]}
}

func TestGuard_rules(t *testing.T) {
	told := make(fencetest.Told, 9)
	g := fence.Guard{Hooks: told.Hooks()}
	check, checkRead := writing(g.CheckContext), reading(g.CheckReadContext)
	move := func(ctx context.Context, resource string) error {
		token, _ := fence.FromContext(ctx)
		lock, _ := fence.LockFromContext(ctx)
		return g.Move(resource, token, lock)
	}
	rules := fencetest.Rules{
		Verbs: fencetest.VerbsOf(check, nil, move, checkRead, checkRead),
		Lax:   map[string]fencetest.Verb{},
		Told:  told,
		Marks: func(_ *testing.T, resource string) fencetest.Marks { return marksOf(&g, resource) },
	}
	rules.Verbs["Check"] = fencetest.Verb{Call: writing(func(ctx context.Context, resource string, token fence.Token) error {
		return g.DoContext(ctx, resource, token, func() error { return nil })
	})}
	for name, v := range rules.Verbs {
		strict := v.Call
		v.Call = func(ctx context.Context, resource string) error {
			g.AllowUnnamed = true
			defer func() { g.AllowUnnamed = false }()
			return strict(ctx, resource)
		}
		rules.Lax[name] = v
	}
	rules.Decide(t)
	rules.Names(t, fence.MaxResource)
}

// A verb without a context knows no names, and the name in a context counts only for the token of that context.
func TestGuard_namesOfTokens(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.CheckContext(of(t, "accounts", 50), "rows", 50))
	require.NoError(t, g.Check("rows", 51))
	require.EqualError(t, g.CheckContext(of(t, "accounts", 54), "rows", 55),
		`fence: token of another lock: 55 without the name of a lock for "rows", which follows lock "accounts"`)
	require.EqualError(t, g.CheckReadContext(readerOf(t, "report", 60), "rows", 60),
		`fence: token of another lock: 60 of a reader of lock "report" for "rows", which follows lock "accounts"`)
}

func TestGuard_paths(t *testing.T) {
	fencetest.Paths(t, 300, 30, func() fencetest.Tree {
		var g fence.Guard
		return fencetest.Tree{
			Claim: writing(bare(g.ClaimPath)), Check: writing(bare(g.CheckPath)),
			Marks: func() any { return []any{g.Marks(), g.ReadMarks()} },
		}
	})
	var g fence.Guard
	require.NoError(t, g.Claim("a/b", 54))
	require.ErrorIs(t, g.ClaimPath("a/b", 41), fence.ErrStale)
	require.Empty(t, g.ReadMarks(), "a refusal at the end changes nothing above")
}

func TestGuard_grants(t *testing.T) {
	var g fence.Guard
	all := fencetest.VerbsOf(writing(bare(g.Claim)), writing(g.CheckContext), nil, reading(bare(g.ClaimRead)), reading(g.CheckReadContext))
	all["Do"] = fencetest.Verb{Call: writing(func(ctx context.Context, resource string, token fence.Token) error {
		return g.DoContext(ctx, resource, token, func() error { return nil })
	})}
	for _, check := range []string{"Check", "Do"} {
		fencetest.Grants(t, all, check)
	}
}

func TestGuard_LoadLocks(t *testing.T) {
	var before, g fence.Guard
	require.NoError(t, before.CheckContext(of(t, "accounts", 54), "rows", 54))
	require.NoError(t, before.Check("free", 54))
	require.Equal(t, map[string]string{"rows": "accounts"}, before.Locks())

	require.NoError(t, g.Load(before.Marks()))
	require.NoError(t, g.LoadLocks(before.Locks()))
	require.ErrorIs(t, g.CheckContext(of(t, "report", 60), "rows", 60), fence.ErrOtherLock)
	require.NoError(t, g.LoadLocks(map[string]string{"rows": "report"}))
	require.Equal(t, before.Locks(), g.Locks(), "it keeps the lock that it follows")
	require.Equal(t, before.Marks(), g.Marks())
}

// A Guard refuses a token that is not valid, and decides by the rule of all stores about the others. No mark is lower
// after a restart. Three bytes are one call.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0, 0, 54, 1, 0, 53, 1, 0, 54, 2, 0, 55})
	f.Add([]byte{0, 0, 54, 0, 1, 41, 3, 0, 0, 4, 0, 41, 4, 2, 60})
	f.Add([]byte{2, 0, 54, 5, 0, 55, 1, 0, 54})
	f.Add([]byte{0, 0, 0, 1, 0, 250, 2, 0, 251, 4, 0, 252, 1, 0, 253})
	f.Add([]byte{0, 0, 54, 4, 0, 41, 1, 0, 53})
	f.Add([]byte{0, 0, 41, 6, 0, 54, 1, 0, 42, 7, 0, 53, 3, 0, 0, 0, 0, 53, 0, 0, 60, 7, 0, 54, 8, 0, 70, 2, 0, 60})
	f.Fuzz(decides)
}

// The same rules with many random calls.
func TestGuard_model(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		calls := make([]byte, 300)
		for i := range calls {
			calls[i] = byte(random.Uint32())
		}
		decides(t, calls)
	}
}

func decides(t *testing.T, calls []byte) {
	t.Helper()
	g, model := &fence.Guard{MaxEra: 32767}, make(map[string]fencetest.Marks)
	for ; len(calls) >= 3; calls = calls[3:] {
		resource, tok := string(rune('a'+calls[1]%4)), tokenOf(calls[2])
		reads, loads := false, false
		var err error
		switch calls[0] % 9 {
		case 0:
			err = g.Claim(resource, tok)
		case 1:
			err = g.Check(resource, tok)
		case 2, 5:
			ran, failure := false, errors.New("disk full")
			err = g.Do(resource, tok, func() error { ran = true; return failure })
			require.Equal(t, errors.Is(err, failure), ran)
			if ran {
				err = nil // the token has been seen
			}
		case 3: // a restart
			marks, readMarks := g.Marks(), g.ReadMarks()
			g = &fence.Guard{MaxEra: 32767}
			require.NoError(t, g.Load(marks))
			require.NoError(t, g.LoadRead(readMarks))
			continue
		case 4:
			loads, err = true, g.Load(map[string]fence.Token{resource: tok})
		case 6:
			reads, err = true, g.ClaimRead(resource, fence.ReadToken(tok))
		case 7:
			reads, err = true, g.CheckRead(resource, fence.ReadToken(tok))
		case 8:
			reads, loads, err = true, true, g.LoadRead(map[string]fence.ReadToken{resource: fence.ReadToken(tok)})
		}
		marks, want := model[resource], error(nil)
		switch {
		case !tok.Valid():
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			err = nil
		case loads && reads:
			marks.Read = max(marks.Read, tok)
		case loads:
			marks.Write = max(marks.Write, tok)
		default:
			marks, want = marks.After(fencetest.Verb{Reads: reads}, tok, "", false)
		}
		fencetest.RequireRefusal(t, want, err, resource, fmt.Sprintf("%d", calls[:3]))
		model[resource] = marks.Normal()
		require.Equal(t, model[resource], marksOf(g, resource).Normal())
	}
	for _, resource := range []string{"a", "b", "c", "d"} {
		require.Equal(t, model[resource], marksOf(g, resource).Normal(), "a call for another resource has changed it")
	}
}

// tokenOf returns one of a few tokens that are close together, or at the limits.
func tokenOf(b byte) fence.Token {
	const era = fence.Token(1) << 48
	edges := []fence.Token{0, -1, era, 1<<63 - 1, era - 1, era + 1, 2 * era, -1 << 63}
	if n := int(b) - (256 - len(edges)); n >= 0 {
		return edges[n]
	}
	return fence.Token(b)
}

// Holders overlap in all verbs, and their waits are cancelled at random. Nothing else guards their writes, so the race
// detector sees two functions that run at once.
func TestGuard_random(t *testing.T) {
	var g fence.Guard
	var logs sync.Map // resource → *[]fencetest.Entry
	log := func(resource string) *[]fencetest.Entry {
		l, _ := logs.LoadOrStore(resource, new([]fencetest.Entry))
		return l.(*[]fencetest.Entry)
	}
	form := func(name string, do func(context.Context, string, fence.Token, func() error) error) fencetest.Form {
		return fencetest.Form{
			Name: name, Alone: "alone", Settles: true,
			Write: func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
				return do(ctx, resource, e.Token, func() error {
					l := log(resource)
					seen := slices.Clone(*l)
					saw(seen)
					if err := ctx.Err(); err != nil {
						return err
					}
					*l = append(seen, e) // a function that ran meanwhile has written in vain
					return nil
				})
			},
		}
	}
	fencetest.Random(t, fencetest.Store{
		Forms: []fencetest.Form{
			form("DoContext", g.DoContext),
			form("Do", func(_ context.Context, resource string, token fence.Token, fn func() error) error {
				return g.Do(resource, token, fn)
			}),
		},
		Claims: []func(context.Context, string) error{
			writing(g.CheckContext),
			writing(bare(g.Claim)),
			writing(bare(func(resource string, token fence.Token) error {
				return g.Load(map[string]fence.Token{resource: token})
			})),
		},
		Entries: func(ctx context.Context, resource string) (all []fencetest.Entry, err error) {
			token, _ := fence.FromContext(ctx)
			err = g.Do(resource, token, func() error {
				all = slices.Clone(*log(resource))
				return nil
			})
			return all, err
		},
		Ordered: true,
		Again:   func(error) bool { return false },
	})
}
