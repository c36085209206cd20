package etcdfence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// of is the context of a holder of a lock; "" is none.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return named(with(t, token), lock)
}

func readerOf(t *testing.T, lock string, token fence.ReadToken) context.Context {
	t.Helper()
	return named(reading(t, token), lock)
}

func named(ctx context.Context, lock string) context.Context {
	if lock == "" {
		return ctx
	}
	return fence.WithLock(ctx, lock)
}

// lenient has marks that let tokens without a name in.
func lenient(t *testing.T, c *fakeetcd.Client) *etcdfence.Marks {
	t.Helper()
	m, err := etcdfence.NewMarks(c, etcdfence.Options{AllowUnnamed: true})
	require.NoError(t, err)
	return m
}

// verbsOf are all verbs. Put writes nothing but the mark.
func verbsOf(m *etcdfence.Marks) map[string]func(ctx context.Context, resource string) error {
	return map[string]func(ctx context.Context, resource string) error{
		"Claim": m.Claim, "Check": m.Check, "ClaimRead": m.ClaimRead, "CheckRead": m.CheckRead, "Move": m.Move,
		"write": func(ctx context.Context, resource string) error {
			kv, err := m.KV(resource)
			if err != nil {
				return err
			}
			return second(kv.Txn(ctx).Commit())
		},
	}
}

// What each verb makes of the lock that the mark follows, in requests, too: once the mark has the name there is one for a write.
func TestMarks_locks(t *testing.T) {
	const (
		accounts = " @accounts"
		report   = " @report"
		stale    = "stale"
		other    = "other"
	)
	for _, tt := range []struct {
		before   string // the mark; "" is none
		verbs    string
		lock     string // of the token; "" is none
		token    int64
		after    string
		requests int
		refused  string
		lenient  bool
	}{
		// The first name stays.
		{"", "Claim write", "accounts", 41, value(41, 0) + accounts, 2, "", false},
		{"", "Move", "accounts", 41, value(41, 0) + accounts, 2, "", false},
		{"", "Check", "accounts", 41, "", 1, "", false},
		{"", "ClaimRead CheckRead", "accounts", 41, value(0, 41) + accounts, 2, "", false},
		{value(41, 0) + accounts, "Claim write Move Check", "accounts", 41, value(41, 0) + accounts, 1, "", false},
		{value(41, 0) + accounts, "Claim write Move", "accounts", 54, value(54, 0) + accounts, 2, "", false},
		{value(41, 50) + accounts, "Claim write Move", "accounts", 54, value(54, 0) + accounts, 2, "", false},
		{value(41, 0) + accounts, "ClaimRead CheckRead", "accounts", 54, value(41, 54) + accounts, 2, "", false},
		{value(41, 54) + accounts, "ClaimRead CheckRead", "accounts", 54, value(41, 54) + accounts, 1, "", false},
		{value(41, 54) + accounts, "ClaimRead CheckRead", "accounts", 50, value(41, 54) + accounts, 1, "", false},
		{value(41, 54) + accounts, "Claim write Move Check", "accounts", 50, value(41, 54) + accounts, 1, stale, false},
		{value(54, 0) + accounts, "Claim write Move Check ClaimRead CheckRead", "accounts", 50, value(54, 0) + accounts, 1, stale, false},

		// A mark without a name takes that of the next token, also if nothing else changes.
		{value(41, 0), "Claim write Move", "accounts", 41, value(41, 0) + accounts, 2, "", false},
		{value(41, 0), "Claim write Move", "accounts", 54, value(54, 0) + accounts, 2, "", false},
		{value(41, 54), "ClaimRead CheckRead", "accounts", 50, value(41, 54) + accounts, 2, "", false},
		{value(41, 0), "ClaimRead CheckRead", "accounts", 41, value(41, 0) + accounts, 2, "", false},
		{value(41, 0), "Check", "accounts", 54, value(41, 0), 1, "", false},
		{value(41, 0), "Claim write Move Check ClaimRead CheckRead", "accounts", 40, value(41, 0), 1, stale, false},

		// Another lock is another lock, whatever the numbers.
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "report", 54, value(41, 0) + accounts, 1, other, false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "report", 41, value(41, 0) + accounts, 1, other, false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "report", 40, value(41, 0) + accounts, 1, other, false},
		{value(0, 54) + accounts, "Claim write Check ClaimRead CheckRead", "report", 50, value(0, 54) + accounts, 1, other, false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "account", 54, value(41, 0) + accounts, 1, other, true},

		// Without a name.
		{value(41, 0), "Claim write", "", 41, value(41, 0), 1, "", false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "", 54, value(41, 0) + accounts, 1, other, false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "", 41, value(41, 0) + accounts, 1, other, false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "", 40, value(41, 0) + accounts, 1, stale, false},
		{value(41, 0) + accounts, "Claim write Check ClaimRead CheckRead", "", 40, value(41, 0) + accounts, 1, stale, true},
		{value(41, 54) + accounts, "Claim write Check", "", 50, value(41, 54) + accounts, 1, stale, true},
		{value(41, 0) + accounts, "Claim write", "", 41, value(41, 0) + accounts, 2, "", true},
		{value(41, 0) + accounts, "Claim write", "", 54, value(54, 0) + accounts, 2, "", true},
		{value(41, 0) + accounts, "ClaimRead CheckRead", "", 54, value(41, 54) + accounts, 2, "", true},
		{value(41, 0) + accounts, "Check", "", 54, value(41, 0) + accounts, 1, "", true},

		// Only a move changes the name, and it is no way past the numbers.
		{value(41, 0) + accounts, "Move", "report", 54, value(54, 0) + report, 2, "", false},
		{value(41, 0) + accounts, "Move", "report", 41, value(41, 0) + report, 2, "", false},
		{value(41, 50) + accounts, "Move", "report", 54, value(54, 0) + report, 2, "", false},
		{value(41, 0) + accounts, "Move", "report", 40, value(41, 0) + accounts, 1, stale, false},
		{value(0, 54) + accounts, "Move", "report", 50, value(0, 54) + accounts, 1, stale, false},
	} {
		for verb := range strings.FieldsSeq(tt.verbs) {
			t.Run(fmt.Sprintf("%s %d of %q at %q, lenient %v", verb, tt.token, tt.lock, tt.before, tt.lenient), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv, c := start(t)
					if tt.before != "" {
						srv.Put("fence/r", tt.before)
					}
					m, rev := newMarks(t, c), srv.Rev()
					if tt.lenient {
						m = lenient(t, c)
					}
					reads := strings.HasSuffix(verb, "Read")
					ctx := of(t, tt.lock, fence.Token(tt.token))
					if reads {
						ctx = readerOf(t, tt.lock, fence.ReadToken(tt.token))
					}
					err := verbsOf(m)[verb](ctx, "r")
					switch tt.refused {
					case stale:
						require.ErrorIs(t, err, fence.ErrStale)
						require.NotErrorIs(t, err, fence.ErrOtherLock)
					case other:
						require.Equal(t, &fence.OtherLockError{
							Resource: "r", Token: fence.Token(tt.token), Read: reads, Lock: tt.lock, Follows: "accounts",
						}, err)
					default:
						require.NoError(t, err)
					}
					require.Equal(t, tt.after, contents(srv, "")["fence/r"])
					require.Len(t, c.Calls(fakeetcd.Any), tt.requests)
					written := map[bool]int64{true: 1}[tt.before != tt.after]
					require.Equal(t, written, srv.Rev()-rev, "nothing is written for nothing")
				})
			})
		}
	}
}

// Every way to write, by the holder of another lock, whose token is higher, and by one without a name. The rightful holder goes on.
func TestMarks_KV_writesOfAnotherLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		kv := markKV(t, c, "r")
		require.NoError(t, kv.Claim(of(t, "accounts", 40)))
		require.NoError(t, kv.Claim(of(t, "accounts", 41))) // now the KV has seen the name
		for name, write := range writes {
			for _, token := range []fence.Token{41, 54} {
				srv.Put("d", "before")
				rev := srv.Rev()
				err := write(of(t, "report", token), kv, "d", "wrong")
				require.Equal(t, &fence.OtherLockError{Resource: "r", Token: token, Lock: "report", Follows: "accounts"}, err, name)
				err = write(with(t, token), kv, "d", "wrong")
				require.Equal(t, &fence.OtherLockError{Resource: "r", Token: token, Follows: "accounts"}, err, name)
				require.Equal(t, rev, srv.Rev(), name)
			}
			require.NoError(t, write(of(t, "accounts", 41), kv, "d", name))
			require.NotContains(t, contents(srv, "d"), "before", name)
		}
	})
}

// A tenure that has claimed sends one request for each write. One without a name does so too, where it is let in, from the second
// write on, and learns a new name when it has to.
func TestMarks_KV_costOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		kv, err := lenient(t, c).KV("r")
		require.NoError(t, err)
		sent := 0
		put := func(ctx context.Context, requests int) {
			t.Helper()
			require.NoError(t, second(kv.Put(ctx, "d", "")))
			require.Len(t, c.Calls(fakeetcd.Any), sent+requests)
			sent += requests
		}
		put(of(t, "accounts", 41), 2)
		put(of(t, "accounts", 41), 1)
		put(with(t, 41), 2)
		put(with(t, 41), 1)
		put(of(t, "accounts", 41), 1)
		srv.Put("fence/r", value(41, 0)+" @ledger")
		put(with(t, 41), 2)
		put(with(t, 41), 1)
		srv.Put("fence/r", value(41, 0))
		put(with(t, 41), 2)
		put(with(t, 41), 1)
		require.Equal(t, value(41, 0), contents(srv, "")["fence/r"])
	})
}
