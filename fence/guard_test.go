package fence_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// verbs are the three ways in which a token reaches a resource. They decide alike.
var verbs = map[string]func(g *fence.Guard, resource string, t fence.Token) error{
	"Claim": (*fence.Guard).Claim,
	"Check": (*fence.Guard).Check,
	"Do": func(g *fence.Guard, resource string, t fence.Token) error {
		return g.Do(resource, t, func() error { return nil })
	},
}

func TestGuard_refusesInvalidTokens(t *testing.T) {
	for name, verb := range verbs {
		t.Run(name, func(t *testing.T) {
			for _, tok := range []fence.Token{0, -1, 1 << 48} {
				var g fence.Guard
				err := verb(&g, "orders", tok)
				require.ErrorIs(t, err, fence.ErrInvalidToken)
				require.NotErrorIs(t, err, fence.ErrStale)
				require.EqualError(t, err, "fence: invalid token "+tok.String()+` for "orders": `+
					`want plain decimal 1 to 9223372036854775807, low 48 bits not 0`)
				require.Empty(t, g.Marks())
			}
		})
	}
}

func TestGuard_boundsNames(t *testing.T) {
	longest, long := strings.Repeat("n", 1024), strings.Repeat("n", 1025)
	with := maps.Clone(verbs)
	with["Load"] = func(g *fence.Guard, resource string, t fence.Token) error {
		return g.Load(map[string]fence.Token{resource: t, "orders": t})
	}
	for name, verb := range with {
		t.Run(name, func(t *testing.T) {
			var g fence.Guard
			require.EqualError(t, verb(&g, long, 54), "fence: resource has 1025 bytes, want 0 to 1024")
			require.Empty(t, g.Marks())
			require.NoError(t, verb(&g, longest, 54))
		})
	}
}

// A waiter whose context has ended does not take its turn, since its caller has gone. It leaves neither a token nor the
// name of a lock.
func TestGuard_waitEndsWithTheContext(t *testing.T) {
	var g fence.Guard
	ctx, cancel := context.WithCancelCause(of(t, "report", 54))
	gone := errors.New("the caller has gone")
	cancel(gone)
	never := func() error { t.Error("fn has run"); return nil }
	tried := func() {
		for _, err := range []error{g.CheckContext(ctx, "orders", 54), g.DoContext(ctx, "orders", 54, never)} {
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, gone)
			require.ErrorContains(t, err, `fence: wait for "orders": `)
		}
		require.Equal(t, map[string]fence.Token{"orders": 41}, g.Marks())
		require.Empty(t, g.Locks())
	}
	require.NoError(t, g.Do("orders", 41, func() error { tried(); return nil }))
	for range 20 { // the turn is free and the context has ended: which comes first is random
		tried()
	}
	require.NoError(t, g.Do("orders", 55, func() error { return nil }), "the turn was given back")
}

// A function may use other resources while it writes to one.
func TestGuard_resourcesAreIndependent(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Do("a", 54, func() error { return g.Do("a/b", 42, func() error { return g.Claim("", 40) }) }))
	require.Equal(t, map[string]fence.Token{"a": 54, "a/b": 42, "": 40}, g.Marks())
}

func TestGuard_Do_survivesAPanic(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Claim("orders", 41))
	require.PanicsWithValue(t, "bug", func() { _ = g.Do("orders", 54, func() error { panic("bug") }) })
	require.ErrorIs(t, g.Check("orders", 53), fence.ErrStale)
	require.NoError(t, g.Claim("orders", 55), "the resource is free again")
}

func TestGuard_Do_nilFunction(t *testing.T) {
	var g fence.Guard
	require.EqualError(t, g.Do("orders", 54, nil), `fence: do for "orders": fn is nil, want a function`)
	require.Empty(t, g.Marks())
}

// These are the calls that never wait for fn, as the doc of Do promises. One that waits hangs here.
func TestGuard_Do_callsThatNeverWait(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Claim("orders", 41))
	require.NoError(t, g.Do("orders", 54, func() error {
		require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks(), "raised before the write, so it can be saved first")
		require.NoError(t, g.Check("orders", 54))
		require.NoError(t, g.Claim("orders", 54))
		require.NoError(t, g.Load(map[string]fence.Token{"orders": 54}))
		require.ErrorIs(t, g.Check("orders", 53), fence.ErrStale)
		require.ErrorIs(t, g.Claim("orders", 53), fence.ErrStale)
		require.ErrorIs(t, g.Do("orders", 53, func() error { return nil }), fence.ErrStale)
		return nil
	}))
}

func TestGuard_Load_allOrNothing(t *testing.T) {
	for _, bad := range []fence.Token{0, -1, 1 << 48} {
		for range 20 { // maps are ranged over in a random order
			var g fence.Guard
			err := g.Load(map[string]fence.Token{"a": 1, "b": 2, "bad": bad, "c": 3, "worse": bad})
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, `for "bad"`)
			require.Empty(t, g.Marks())
		}
	}
}

func TestGuard_Marks_isACopy(t *testing.T) {
	var g fence.Guard
	require.NotNil(t, g.Marks())
	require.NoError(t, g.Claim("orders", 54))
	g.Marks()["orders"] = 1
	require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())
}

// A reader's claim waits for the function of an older writer, and from then on that writer is refused: it cannot change
// what the reader reads. Readers do not wait for each other, nor for a function of a newer writer, which fences them.
func TestGuard_ClaimRead_waitsForTheOlderWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g fence.Guard
		claimed := make(chan error, 1)
		require.NoError(t, g.Do("orders", 41, func() error {
			go func() { claimed <- g.ClaimRead("orders", 54) }()
			synctest.Wait()
			require.Empty(t, g.ReadMarks(), "the reader waits")
			return nil
		}))
		require.NoError(t, <-claimed)
		require.Equal(t, &fence.StaleError{Resource: "orders", Token: 41, Highest: 54, ByReader: true}, g.Check("orders", 41))
		require.NoError(t, g.CheckRead("orders", 53), "an older reader, which does not conflict")
		require.NoError(t, g.Do("orders", 60, func() error {
			require.Equal(t, &fence.StaleError{Resource: "orders", Token: 54, Highest: 60, Read: true}, g.CheckRead("orders", 54))
			return nil
		}))
	})
}

func TestStaleError_text(t *testing.T) {
	err := &fence.StaleError{Resource: "orders", Token: 41, Highest: 54}
	require.EqualError(t, err, `fence: stale token 41 for "orders": highest seen is 54`)
	require.EqualError(t, &fence.StaleError{Resource: "orders", Token: 41}, `fence: stale token 41 for "orders"`)
	require.NotErrorIs(t, err, fence.ErrInvalidToken)
	err.Read = true
	require.EqualError(t, err, `fence: stale token 41 of a reader for "orders": highest seen is 54`)
	require.EqualError(t, &fence.StaleError{Resource: "orders", Token: 41, Highest: 54, ByReader: true},
		`fence: stale token 41 for "orders": highest seen of a reader is 54`)
}
