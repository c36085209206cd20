package redisfence_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// holder returns the context of a lock's holder, or one without a name.
func holder(tb testing.TB, lock string, t fence.Token) context.Context {
	tb.Helper()
	if lock == "" {
		return as(tb, t)
	}
	return of(tb, lock, t)
}

// What each verb makes of a mark that follows a lock or takes a name, and which commands it takes: as many as ever.
func TestMarks_locks(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	all := verbs(f)
	for name, verb := range all {
		require.NoError(t, verb(as(t, 1), "warm "+name), "the server knows the script")
	}
	other := &fence.OtherLockError{Follows: "accounts"}
	stale := func(highest fence.Token) *fence.StaleError { return &fence.StaleError{Highest: highest} }
	byReader := &fence.StaleError{Highest: 60, ByReader: true}
	for _, tt := range []struct {
		before, verb, lock string
		token              fence.Token
		after              string
		sets               int
		refused            error
	}{
		// The first name is taken, also with a token that equals the mark, and from a reader.
		{"", "Claim", "accounts", 54, "54 0 accounts", 1, nil},
		{"", "ClaimRead", "accounts", 54, "0 54 accounts", 1, nil},
		{"", "CheckRead", "accounts", 54, "0 54 accounts", 1, nil},
		{"54", "Claim", "accounts", 54, "54 0 accounts", 1, nil},
		{"54", "Set", "accounts", 54, "54 0 accounts", 2, nil},
		{"54", "Do", "accounts", 54, "54 0 accounts", 2, nil},
		{"54", "Run", "accounts", 54, "54 0 accounts", 2, nil},
		{"54", "ClaimRead", "accounts", 54, "54 0 accounts", 1, nil},
		{"54", "CheckRead", "accounts", 54, "54 0 accounts", 1, nil},
		{"41", "Set", "accounts", 54, "54 0 accounts", 2, nil},
		{"41 60", "CheckRead", "accounts", 54, "41 60 accounts", 1, nil},
		{"0 60", "Claim", "accounts", 60, "60 0 accounts", 1, nil},
		{"54", "Check", "accounts", 54, "54", 0, nil},
		{"54", "Check", "accounts", 60, "54", 0, nil},
		{"60", "Claim", "accounts", 54, "60", 0, stale(60)},
		{"41 60", "Set", "accounts", 54, "41 60", 0, byReader},

		// The lock of the mark.
		{"54 0 accounts", "Claim", "accounts", 54, "54 0 accounts", 1, nil},
		{"54 0 accounts", "Set", "accounts", 54, "54 0 accounts", 1, nil},
		{"54 0 accounts", "Set", "accounts", 60, "60 0 accounts", 2, nil},
		{"41 54 accounts", "Do", "accounts", 60, "60 0 accounts", 2, nil},
		{"0 54 accounts", "Run", "accounts", 54, "54 0 accounts", 2, nil},
		{"54 0 accounts", "ClaimRead", "accounts", 60, "54 60 accounts", 1, nil},
		{"54 60 accounts", "CheckRead", "accounts", 55, "54 60 accounts", 0, nil},
		{"54 0 accounts", "CheckRead", "accounts", 54, "54 0 accounts", 0, nil},
		{"54 0 accounts", "Check", "accounts", 60, "54 0 accounts", 0, nil},
		{"54 0 accounts", "Check", "accounts", 41, "54 0 accounts", 0, stale(54)},
		{"54 0 accounts", "Set", "accounts", 53, "54 0 accounts", 0, stale(54)},
		{"54 60 accounts", "Do", "accounts", 59, "54 60 accounts", 0, byReader},
		{"54 60 accounts", "Run", "accounts", 53, "54 60 accounts", 0, stale(54)},

		// Another lock, whatever the numbers.
		{"54 0 accounts", "Claim", "report", 60, "54 0 accounts", 0, other},
		{"54 0 accounts", "Claim", "report", 54, "54 0 accounts", 0, other},
		{"54 0 accounts", "Claim", "report", 41, "54 0 accounts", 0, other},
		{"54 0 accounts", "Check", "report", 60, "54 0 accounts", 0, other},
		{"54 0 accounts", "Set", "report", 60, "54 0 accounts", 0, other},
		{"54 60 accounts", "Do", "report", 41, "54 60 accounts", 0, other},
		{"0 60 accounts", "Run", "report", 61, "0 60 accounts", 0, other},
		{"54 0 accounts", "ClaimRead", "report", 60, "54 0 accounts", 0, other},
		{"54 0 accounts", "CheckRead", "report", 41, "54 0 accounts", 0, other},
		{"54 0 accounts", "Set", "account", 60, "54 0 accounts", 0, other},
		{"54 0 accounts", "Set", "accounts ", 60, "54 0 accounts", 0, other},

		// Without a name. What is stale is so first.
		{"54 0 accounts", "Claim", "", 54, "54 0 accounts", 0, other},
		{"54 0 accounts", "Check", "", 60, "54 0 accounts", 0, other},
		{"54 0 accounts", "Set", "", 60, "54 0 accounts", 0, other},
		{"54 0 accounts", "Do", "", 60, "54 0 accounts", 0, other},
		{"54 60 accounts", "Run", "", 60, "54 60 accounts", 0, other},
		{"54 0 accounts", "ClaimRead", "", 60, "54 0 accounts", 0, other},
		{"54 60 accounts", "CheckRead", "", 55, "54 60 accounts", 0, other},
		{"54 0 accounts", "Set", "", 53, "54 0 accounts", 0, stale(54)},
		{"54 60 accounts", "Claim", "", 59, "54 60 accounts", 0, byReader},
		{"54 0 accounts", "CheckRead", "", 53, "54 0 accounts", 0, stale(54)},

		// To another lock. What is stale is so as ever.
		{"", "Move", "ledger", 54, "54 0 ledger", 1, nil},
		{"54", "Move", "ledger", 54, "54 0 ledger", 1, nil},
		{"54 0 accounts", "Move", "ledger", 60, "60 0 ledger", 1, nil},
		{"54 0 accounts", "Move", "ledger", 54, "54 0 ledger", 1, nil},
		{"54 60 accounts", "Move", "ledger", 60, "60 0 ledger", 1, nil},
		{"60 0 ledger", "Move", "ledger", 60, "60 0 ledger", 1, nil},
		{"54 0 accounts", "Move", "ledger", 53, "54 0 accounts", 0, stale(54)},
		{"54 60 accounts", "Move", "ledger", 59, "54 60 accounts", 0, byReader},
	} {
		t.Run(fmt.Sprintf("%s %q %d at %q", tt.verb, tt.lock, tt.token, tt.before), func(t *testing.T) {
			require.NoError(t, c.Del(t.Context(), f.MarkKey("orders"), "data").Err())
			if tt.before != "" {
				require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), tt.before, 0).Err())
			}
			require.NoError(t, c.ConfigResetStat(t.Context()).Err())
			err := all[tt.verb](holder(t, tt.lock, tt.token), "orders")
			require.Equal(t, []int{1, 1, tt.sets}, []int{calls(t, c, "evalsha"), calls(t, c, "get"), calls(t, c, "set")},
				"EVALSHA, GET, SET")
			requireRefusal(t, tt.refused, err, tt.token, tt.lock, strings.HasSuffix(tt.verb, "Read"))
			if tt.refused != nil {
				require.Empty(t, get(t, c, "data"))
			}
			require.Equal(t, tt.after, get(t, c, f.MarkKey("orders")))
		})
	}
}

// requireRefusal compares err with want, to which it adds what is known of the token.
func requireRefusal(t *testing.T, want, err error, token fence.Token, lock string, reads bool) {
	t.Helper()
	switch refusal := want.(type) { //nolint:errorlint // a row's own
	case nil:
		require.NoError(t, err)
	case *fence.StaleError:
		want := *refusal
		want.Resource, want.Token, want.Read = "orders", token, reads
		require.Equal(t, &want, err)
	case *fence.OtherLockError:
		want := *refusal
		want.Resource, want.Token, want.Read, want.Lock = "orders", token, reads, lock
		require.Equal(t, &want, err)
	}
}

// The tokens of older clients go on being accepted where that is wanted. They do not change whom the resource follows.
func TestOptions_AllowUnnamed(t *testing.T) {
	c := newClient(t)
	f, err := redisfence.New(c, redisfence.Options{AllowUnnamed: true})
	require.NoError(t, err)
	mark := func() string { return get(t, c, f.MarkKey("orders")) }
	require.NoError(t, f.Claim(of(t, "accounts", 54), "orders"))

	require.NoError(t, f.Check(as(t, 54), "orders"))
	require.NoError(t, f.Set(as(t, 55), "orders", "data", "new"))
	require.Equal(t, "55 0 accounts", mark())
	require.NoError(t, f.ClaimRead(reading(as(t, 60)), "orders"))
	require.NoError(t, f.CheckRead(reading(as(t, 61)), "orders"))
	require.Equal(t, "55 61 accounts", mark())
	require.NoError(t, f.Claim(fence.WithLock(as(t, 62), "accounts", "stock"), "orders"), "several are none")
	require.Equal(t, "62 0 accounts", mark())

	requireStale(t, f.Claim(as(t, 61), "orders"), "orders", 61, 62)
	require.ErrorIs(t, f.Claim(of(t, "report", 70), "orders"), fence.ErrOtherLock)
	require.ErrorIs(t, f.CheckRead(reading(of(t, "report", 70)), "orders"), fence.ErrOtherLock)
	require.ErrorIs(t, f.Move(as(t, 70), "orders"), fence.ErrInvalidToken)
	require.Equal(t, "62 0 accounts", mark())
}

func TestMove(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	require.NoError(t, f.Set(of(t, "accounts", 54), "orders", "data", "old"))
	require.NoError(t, f.Move(of(t, "ledger", 60), "orders"))
	for name, verb := range verbs(f) {
		if name == "Move" {
			continue
		}
		err := verb(of(t, "accounts", 61), "orders")
		require.ErrorIs(t, err, fence.ErrOtherLock, name)
		require.NotErrorIs(t, err, fence.ErrStale)
	}
	require.Equal(t, "old", get(t, c, "data"))
	requireStale(t, f.Set(of(t, "ledger", 59), "orders", "data", "stale"), "orders", 59, 60)
	require.NoError(t, f.Set(of(t, "ledger", 60), "orders", "data", "new"))
	require.NoError(t, f.Move(of(t, "accounts", 70), "orders"), "and back")
	require.ErrorIs(t, f.Set(of(t, "ledger", 71), "orders", "data", "stale"), fence.ErrOtherLock)
}

func TestMove_needsTheNameOfOneLock(t *testing.T) {
	f := newFence(t, silent(t))
	for _, ctx := range []context.Context{as(t, 54), fence.WithLock(as(t, 54), "accounts", "stock")} {
		err := f.Move(ctx, "orders")
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.EqualError(t, err, `redisfence: move "orders": fence: invalid token: the context carries no name of a lock, or several: `+
			`want the context of one lock, or one of fence.WithLock or fence.ForLock`)
	}
	require.ErrorIs(t, f.Move(reading(of(t, "accounts", 54)), "orders"), fence.ErrInvalidToken, "a reader does not write")
}

func TestMarks_boundsLocks(t *testing.T) {
	f := newFence(t, silent(t))
	for lock, want := range map[string]string{
		"":                                   "its lock's name has 0 bytes, want 1 to 2304",
		strings.Repeat("l", fence.MaxLock+1): "its lock's name has 2305 bytes, want 1 to 2304",
		"a\x00":                              `its lock's name is "a\x00", want UTF-8 without NUL`,
		"\xff":                               `its lock's name is "\xff", want UTF-8 without NUL`,
	} {
		for name, verb := range verbs(f) {
			err := verb(of(t, lock, 54), "orders")
			require.ErrorIs(t, err, fence.ErrInvalidToken, name)
			require.ErrorContains(t, err, want, name)
		}
	}
}

// A name is what it is, whatever it looks like.
func TestMarks_lockOfEveryKind(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	names := []string{
		"a", "A", "a ", " a", "a b", "60", "54 60", "54 0 a", "0", " ", "\n", "a\nb", "%s", "ä", "日本", "{orders}",
		strings.Repeat("l", fence.MaxLock), strings.Repeat("l", fence.MaxLock-1),
	}
	for _, name := range names {
		require.NoError(t, c.Del(t.Context(), f.MarkKey("orders")).Err())
		require.NoError(t, f.Claim(of(t, name, 41), "orders"))
		for _, other := range names {
			if other != name {
				require.Equal(t, &fence.OtherLockError{Resource: "orders", Token: 70, Lock: other, Follows: name},
					f.Claim(of(t, other, 70), "orders"))
			}
		}
		require.NoError(t, f.ClaimRead(reading(of(t, name, 54)), "orders"))
		require.NoError(t, f.ClaimRead(reading(of(t, name, 60)), "orders"))
		require.Equal(t, "41 60 "+name, get(t, c, f.MarkKey("orders")))
		require.NoError(t, f.Claim(of(t, name, 70), "orders"))
		require.Equal(t, "70 0 "+name, get(t, c, f.MarkKey("orders")))
		requireStale(t, f.Claim(of(t, name, 69), "orders"), "orders", 69, 70)
	}
}

// beforeLocks is what a version of this package that knows no locks does first in each of its scripts.
//
//go:embed testdata/before_locks.lua
var beforeLocks string

// A version that does not know the locks accepts nobody at a mark that has one, and knows every other mark.
func TestMarks_versionWithoutLocks(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	before := func(token fence.Token) []any {
		parts, err := c.Eval(t.Context(), beforeLocks, []string{f.MarkKey("orders")}, token.String()).Slice()
		require.NoError(t, err)
		return parts
	}
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	require.Equal(t, []any{"ok"}, before(54))
	require.NoError(t, f.ClaimRead(reading(as(t, 60)), "orders"))
	require.Equal(t, []any{"ok"}, before(60))
	for _, lock := range []string{"accounts", "60", " 60", "60 ", "\n"} {
		require.NoError(t, f.Move(of(t, lock, 60), "orders"))
		require.Equal(t, []any{"malformed", "60 0 " + lock}, before(60))
		require.Equal(t, "malformed", before(70)[0])
		require.NoError(t, f.ClaimRead(reading(of(t, lock, 61)), "orders"))
		require.Equal(t, "malformed", before(70)[0])
		require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), "60", 0).Err())
	}
}

// The holder is held up with its write on the way: at each of the two sendings of a script that the server does not know yet, and
// at the only one of a script that it knows. Meanwhile another lock's holder names the resource, also with an older token, or moves
// it.
func TestMarks_otherLockComesOnTheWay(t *testing.T) {
	comes := map[string]func(f *redisfence.Marks) error{
		"a claim":          func(f *redisfence.Marks) error { return f.Claim(of(t, "ledger", 50), "orders") },
		"an older claim":   func(f *redisfence.Marks) error { return f.Claim(of(t, "ledger", 30), "orders") },
		"a reader's claim": func(f *redisfence.Marks) error { return f.ClaimRead(reading(of(t, "ledger", 30)), "orders") },
		"a write":          func(f *redisfence.Marks) error { return f.Set(of(t, "ledger", 30), "orders", "ledger", 1) },
		"a move":           func(f *redisfence.Marks) error { return f.Move(of(t, "ledger", 50), "orders") },
	}
	for _, at := range []string{"evalsha", "eval"} {
		for _, known := range []bool{false, true} {
			for name, come := range comes {
				if at == "eval" && known {
					continue // it is not sent
				}
				t.Run(fmt.Sprintf("%s at %s, known: %t", name, at, known), func(t *testing.T) {
					c := newClient(t)
					successor := newFence(t, c)
					if name == "a move" {
						require.NoError(t, successor.Claim(of(t, "accounts", 41), "orders"))
					} else {
						require.NoError(t, successor.Claim(as(t, 30), "orders"), "it has no name yet")
					}
					if known {
						require.NoError(t, successor.Set(as(t, 1), "other", "other", 1))
					} else {
						require.NoError(t, c.ScriptFlush(t.Context()).Err())
					}
					paused := newClientOf(t, c)
					came := 0
					paused.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
						if cmd.Name() == at {
							came++
							require.NoError(t, come(successor))
							if !known && at == "evalsha" { // come has sent the script
								require.NoError(t, c.ScriptFlush(ctx).Err())
							}
						}
						return next(ctx, cmd)
					}))
					err := newFence(t, paused).Set(of(t, "accounts", 60), "orders", "data", "of another lock")
					require.Equal(t, &fence.OtherLockError{Resource: "orders", Token: 60, Lock: "accounts", Follows: "ledger"}, err)
					require.Equal(t, 1, came)
					require.Empty(t, get(t, c, "data"))
				})
			}
		}
	}
}

// Holders of two locks, of whom the resource follows one at a time, and some without a name, call all verbs at random. Each answer
// is that of the fence in memory, and so are the marks at the end.
func TestMarks_locksRandom(t *testing.T) {
	c := newClient(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tally := map[string]int{}
	for history := range 60 {
		unnamed := random.IntN(2) == 0
		stored, err := redisfence.New(c, redisfence.Options{AllowUnnamed: unnamed})
		require.NoError(t, err)
		model := fence.Guard{AllowUnnamed: unnamed}
		resource := fmt.Sprintf("random %d", history)
		for call := range 40 {
			token := fence.Token(80 + call + random.IntN(10)) // some have a digit more
			lock := []string{"accounts", "accounts", "report", ""}[random.IntN(4)]
			ctx := holder(t, lock, token)
			var got, want error
			verb := []string{"Claim", "Set", "ClaimRead", "CheckRead", "Move"}[random.IntN(5)]
			switch verb {
			case "Claim":
				got, want = stored.Claim(ctx, resource), model.CheckContext(ctx, resource, token)
			case "Set":
				got, want = stored.Set(ctx, resource, "data", 1), model.CheckContext(ctx, resource, token)
			case "ClaimRead":
				got, want = stored.ClaimRead(reading(ctx), resource), model.CheckReadContext(reading(ctx), resource, fence.ReadToken(token))
			case "CheckRead":
				got, want = stored.CheckRead(reading(ctx), resource), model.CheckReadContext(reading(ctx), resource, fence.ReadToken(token))
			case "Move":
				if lock == "" || random.IntN(3) > 0 { // rarely, or few holders of the other lock are refused
					continue
				}
				got, want = stored.Move(ctx, resource), model.Move(resource, token, lock)
			}
			require.Equal(t, want, got, "%s %q %d", verb, lock, token)
			switch {
			case errors.Is(got, fence.ErrOtherLock):
				tally["of another lock"]++
			case got != nil:
				tally["stale"]++
			default:
				tally["accepted"]++
			}
			m, ok := parse(get(t, c, stored.MarkKey(resource)))
			require.True(t, ok)
			require.Equal(t, model.Locks()[resource], m.lock)
			require.Equal(t, model.Marks()[resource], m.write)
			if read := fence.Token(model.ReadMarks()[resource]); read > m.write {
				require.Equal(t, read, m.read)
			}
		}
	}
	t.Log(tally)
}
