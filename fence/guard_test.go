package fence_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestGuard_refusesBadInput(t *testing.T) {
	var g fence.Guard
	long, nothing := strings.Repeat("n", 1025), func() error { return nil }
	for want, errs := range map[string][]error{
		"fence: resource has 1025 bytes, want 0 to 1024": {
			g.Claim(long, 54), g.Do(long, 54, nothing), g.ClaimRead(long, 54), g.ClaimPath(long, 54),
			g.Load(map[string]fence.Token{long: 54, "orders": 54}), g.LoadLocks(map[string]string{long: "l", "orders": "l"}),
		},
		`fence: invalid token 0 for "orders": want plain decimal 1 to 9223372036854775807, low 48 bits not 0`: {
			g.Claim("orders", 0), g.Do("orders", 0, nothing), g.ClaimRead("orders", 0), g.ClaimPath("orders", 0),
			g.Load(map[string]fence.Token{"a": 1, "b": 2, "orders": 0, "other": 0}),
		},
		"fence: invalid token 9223372036854775807: its era is 32767, want 0 to 15: if this era is in use, " +
			"raise MaxEra in the options of the fence": {
			g.Claim("orders", math.MaxInt64), g.Do("orders", math.MaxInt64, nothing), g.ClaimRead("orders", math.MaxInt64),
			g.ClaimPath("orders", math.MaxInt64), g.Load(map[string]fence.Token{"a": 1, "orders": math.MaxInt64}),
		},
		"fence: Guard.MaxEra is 32768, want 1 to 32767, or 0 for 15": {(&fence.Guard{MaxEra: 32768}).Claim("orders", 54)},
		`fence: do for "orders": fn is nil, want a function`:         {g.Do("orders", 54, nil)},
	} {
		for _, err := range errs {
			require.EqualError(t, err, want)
		}
	}
	for lock, want := range map[string]string{
		"":                        "fence: invalid token: its lock's name has 0 bytes, want 1 to 2304",
		strings.Repeat("l", 2305): "fence: invalid token: its lock's name has 2305 bytes, want 1 to 2304",
		"a\x00":                   `fence: invalid token: its lock's name is "a\x00", want UTF-8 without NUL`,
		"\xff":                    `fence: invalid token: its lock's name is "\xff", want UTF-8 without NUL`,
	} {
		require.EqualError(t, g.Move("rows", 54, lock), want)
		require.EqualError(t, g.LoadLocks(map[string]string{"rows": lock, "other": "l"}), want+` (resource "rows")`)
		require.EqualError(t, g.CheckContext(of(t, lock, 54), "rows", 54), want)
	}
	require.Empty(t, g.Marks())
	require.Empty(t, g.Locks())
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

func TestGuard_Do_survivesAPanic(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Claim("orders", 41))
	require.PanicsWithValue(t, "bug", func() { _ = g.Do("orders", 54, func() error { panic("bug") }) })
	require.ErrorIs(t, g.Check("orders", 53), fence.ErrStale)
	require.NoError(t, g.Claim("orders", 55), "the resource is free again")
}

// These are the calls that never wait for fn, as the doc of Do promises. One that waits hangs here.
func TestGuard_Do_callsThatNeverWait(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Claim("orders", 41))
	require.NoError(t, g.Do("orders", 54, func() error {
		require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks(), "raised before the write, so it can be saved first")
		require.NoError(t, g.Check("orders", 54))
		require.NoError(t, g.Claim("orders", 54))
		require.NoError(t, g.ClaimPath("orders", 54))
		require.NoError(t, g.Load(map[string]fence.Token{"orders": 54}))
		require.ErrorIs(t, g.Check("orders", 53), fence.ErrStale)
		require.ErrorIs(t, g.Claim("orders", 53), fence.ErrStale)
		require.ErrorIs(t, g.Do("orders", 53, func() error { return nil }), fence.ErrStale)
		return nil
	}))
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
			require.Equal(t, &fence.StaleError{Resource: "orders", Token: 55, Highest: 60, Read: true}, g.CheckRead("orders", 55))
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

// The first two tokens of a resource must meet at one mark, not at one each.
func TestGuard_firstTokensMeetAtOneMark(t *testing.T) {
	const resources = 20_000
	names := make([]string, resources)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	var (
		g  fence.Guard
		wg sync.WaitGroup
	)
	for _, tok := range []fence.Token{41, 42} {
		wg.Go(func() {
			// The goroutine that is behind finds marks, which is faster than adding them, so it catches up.
			for _, name := range names {
				_ = g.Claim(name, tok) // 41 is refused if it comes second
			}
		})
	}
	wg.Wait()
	marks := g.Marks()
	require.Len(t, marks, resources)
	for resource, mark := range marks {
		require.Equal(t, fence.Token(42), mark, resource)
	}
}

// A newer token is not accepted, by any verb, while the function of an older one runs. When its turn comes it is compared
// again: the mark may have passed it meanwhile.
func TestGuard_Do_newerTokenWaits(t *testing.T) {
	for name, verb := range map[string]func(g *fence.Guard, t fence.Token) error{
		"Claim": func(g *fence.Guard, t fence.Token) error { return g.Claim("orders", t) },
		"Check": func(g *fence.Guard, t fence.Token) error { return g.Check("orders", t) },
		"Do":    func(g *fence.Guard, t fence.Token) error { return g.Do("orders", t, func() error { return nil }) },
		"Load":  func(g *fence.Guard, t fence.Token) error { return g.Load(map[string]fence.Token{"orders": t}) },
		"Move":  func(g *fence.Guard, t fence.Token) error { return g.Move("orders", t, "ledger") },
	} {
		accepted := 1
		if name == "Load" {
			accepted = 13 // it compares no token
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g fence.Guard
				results := make(chan error, 13)
				require.NoError(t, g.Do("orders", 41, func() error {
					for tok := fence.Token(54); tok > 41; tok-- { // the newest is first in the line
						go func() { results <- verb(&g, tok) }()
						synctest.Wait()
					}
					require.Empty(t, results, "54 was accepted while 41 was still writing")
					require.Equal(t, map[string]fence.Token{"orders": 41}, g.Marks())
					return nil
				}))
				synctest.Wait()
				var all []error
				for range cap(results) {
					if err := <-results; !errors.Is(err, fence.ErrStale) {
						all = append(all, err)
					}
				}
				require.Equal(t, make([]error, accepted), all, "an older token was accepted after a newer one")
				require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())
			})
		})
	}
}

// A claim waits for a function at any node. Meanwhile it holds no other node, and is refused if a newer holder comes
// there.
func TestGuard_ClaimPath_waitsWithoutATurn(t *testing.T) {
	nodes := []string{"a", "a/b", "a/b/c"}
	for _, busy := range nodes {
		for _, used := range nodes {
			synctest.Test(t, func(t *testing.T) {
				var g fence.Guard
				claimed := make(chan error, 1)
				require.NoError(t, g.Do(busy, 5, func() error {
					go func() { claimed <- g.ClaimPath("a/b/c", 7) }()
					synctest.Wait()
					require.Empty(t, claimed, "the claim does not wait at %s", busy)
					if used == busy {
						return nil
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					require.NoError(t, g.DoContext(ctx, used, 8, func() error { return nil }), "the claim holds %s", used)
					return nil
				}))
				err := <-claimed
				if used == busy {
					require.NoError(t, err)
					return
				}
				require.Equal(t, &fence.StaleError{Resource: used, Token: 7, Highest: 8}, err, "it has waited at %s", busy)
			})
		}
	}
}

func TestGuard_hooks(t *testing.T) {
	told := make(fencetest.Told, 9)
	g := fence.Guard{Hooks: told.Hooks()}
	require.NoError(t, g.Claim("orders", 54))
	_, err := told.Last()
	require.NoError(t, err)

	elsewhere := &fence.StaleError{Resource: "elsewhere", Token: 55}
	ended, end := context.WithCancel(t.Context())
	end()
	do := func(err error) error { return g.Do("orders", 54, func() error { return err }) }
	for name, verb := range map[string]func() (*fence.Access, error){
		"a function that fails": func() (*fence.Access, error) {
			require.EqualError(t, do(errors.New("failed")), "failed")
			return &fence.Access{Resource: "orders", Token: 54}, nil
		},
		"a function's refusal elsewhere": func() (*fence.Access, error) {
			require.ErrorIs(t, do(elsewhere), elsewhere)
			return &fence.Access{Resource: "orders", Token: 54}, nil
		},
		"a path": func() (*fence.Access, error) {
			return &fence.Access{Resource: "a/b", Token: 54}, g.ClaimPath("a/b", 54)
		},
		"a stale path": func() (*fence.Access, error) {
			return &fence.Access{Resource: "orders/today", Token: 41}, g.CheckPath("orders/today", 41)
		},
		"a context that another's refusal has ended": func() (*fence.Access, error) {
			return &fence.Access{Resource: "busy", Token: 54}, g.Do("busy", 54, func() error {
				for _, other := range []error{elsewhere, &fence.StaleError{Resource: "busy", Token: 54}} {
					ctx, cancel := context.WithCancelCause(t.Context())
					cancel(other)
					require.ErrorIs(t, g.CheckContext(ctx, "busy", 55), other)
					_, err := told.Last()
					require.Error(t, err, "the hooks are not called")
				}
				return nil
			})
		},
		"an illegal token": func() (*fence.Access, error) { return nil, g.Check("/orders", 0) },
		"an ended context": func() (*fence.Access, error) { return nil, g.CheckContext(ended, "orders", 60) },
	} {
		t.Run(name, func(t *testing.T) {
			want, err := verb()
			got, failure := told.Last()
			if want == nil {
				require.Error(t, err)
				require.Error(t, failure, "the hooks are not called")
				return
			}
			require.NoError(t, failure)
			require.Equal(t, fencetest.Event{Access: *want, Err: err}, got)
		})
	}
}

func TestGuard_Check_doesNotAllocate(t *testing.T) {
	var calls int
	resource := string([]byte("orders")) // as it comes from a request, not a constant
	for name, hooks := range map[string]*fence.Hooks{
		"none": nil, "empty": {}, "set": {Accepted: func(context.Context, fence.Access) { calls++ }},
	} {
		t.Run(name, func(t *testing.T) {
			g := fence.Guard{Hooks: hooks}
			require.NoError(t, g.Claim(resource, 54))
			require.Zero(t, testing.AllocsPerRun(1000, func() { _ = g.Check(resource, 54) }))
			require.ErrorIs(t, g.Check(resource, 53), fence.ErrStale, "without a hook for refusals")
		})
	}
	require.NotZero(t, calls)
}

func BenchmarkGuard_Check(b *testing.B) {
	var g fence.Guard
	b.ReportAllocs()
	for b.Loop() {
		if err := g.Check("orders", 54); err != nil {
			b.Fatal(err)
		}
	}
}

// Sixteen goroutines, on one resource and on many. With -cpu 1,2,… the figures show whether it scales with the cores.
func BenchmarkGuard_Check_parallel(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run("goroutines=16/resources="+strconv.Itoa(n), func(b *testing.B) {
			var g fence.Guard
			names := make([]string, n)
			for i := range names {
				names[i] = "orders/" + strconv.Itoa(i)
				require.NoError(b, g.Claim(names[i], 54))
			}
			var began atomic.Int64
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0))) // for each of GOMAXPROCS
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := int(began.Add(1)) * n / 16; pb.Next(); i++ {
					if err := g.Check(names[i%n], 54); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
