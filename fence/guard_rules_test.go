package fence_test

import (
	"context"
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
