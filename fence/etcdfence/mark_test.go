package etcdfence_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func TestMarks_verbs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m := newMarks(t, c)
		stale := fence.StaleError{Resource: "orders", Token: 41, Highest: 54}
		require.NoError(t, m.Check(with(t, 41), "orders"))
		require.Empty(t, contents(srv, ""), "Check raises nothing")
		require.NoError(t, m.Claim(with(t, 41), "orders"))
		require.NoError(t, m.Claim(with(t, 54), "orders"))
		rev := srv.Rev()
		require.NoError(t, m.Claim(with(t, 54), "orders"))
		require.NoError(t, m.Check(with(t, 54), "orders"))
		require.NoError(t, m.Check(with(t, 60), "orders"))
		requireStale(t, m.Claim(with(t, 41), "orders"), stale)
		requireStale(t, m.Check(with(t, 41), "orders"), stale)
		require.Equal(t, rev, srv.Rev())
		require.Equal(t, map[string]string{"fence/orders": "00000000000000000054"}, contents(srv, ""))
		require.NoError(t, m.Claim(with(t, 41), "stock"), "resources are apart")
	})
}

// Every way to write, by the older and the newer of two holders, in each order.
func TestMarks_KV_writes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		kv := markKV(t, c, "r")
		old, next := fence.Token(41), fence.Token(54)
		for name, write := range writes {
			srv.Put("d", "before")
			require.NoError(t, write(with(t, old), kv, "d", name))
			require.NotContains(t, contents(srv, "d"), "before", name)
			require.NoError(t, write(with(t, next), kv, "d", name), "raises the mark")
			srv.Put("d", "before")
			require.NoError(t, write(with(t, next), kv, "d", name))
			rev := srv.Rev()
			stale := fence.StaleError{Resource: "r", Token: old, Highest: next}
			requireStale(t, write(with(t, old), kv, "d", "stale"), stale)
			require.Equal(t, rev, srv.Rev(), name)
			old, next = next, next+10
		}
	})
}

// A tenure that has claimed has one request per write, which a read does not precede.
func TestMarks_KV_cost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		kv := markKV(t, c, "r")
		require.NoError(t, kv.Claim(with(t, 41)))
		require.Len(t, c.Calls(fakeetcd.Any), 2)
		require.NoError(t, second(kv.Put(with(t, 41), "d", "")))
		require.Len(t, c.Calls(fakeetcd.Any), 3)
		require.NoError(t, second(kv.Put(with(t, 54), "d", "")))
		require.Len(t, c.Calls(fakeetcd.Any), 5, "raised by a write")
	})
}

// Whatever comes between the two requests of a write that raises the mark is seen by the second.
func TestMarks_KV_interleaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			before, between string // values of the mark; "" is none
			stale           bool
			requests        int
		}{
			"absent, nothing between":  {"", "", false, 2},
			"absent, older between":    {"", "00000000000000000007", false, 3},
			"absent, same between":     {"", "00000000000000000041", false, 3},
			"absent, newer between":    {"", "00000000000000000054", true, 2},
			"lower, older between":     {"00000000000000000003", "00000000000000000007", false, 3},
			"lower, same between":      {"00000000000000000003", "00000000000000000041", false, 3},
			"lower, newer between":     {"00000000000000000003", "00000000000000000054", true, 2},
			"lower, the same value":    {"00000000000000000003", "00000000000000000003", false, 3},
			"lower, malformed between": {"00000000000000000003", "7", true, 2},
		} {
			srv, c := start(t)
			if tt.before != "" {
				srv.Put("fence/r", tt.before)
			}
			hold, first := make(chan struct{}), true
			c.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Match: func(fakeetcd.Call) bool {
				defer func() { first = false }()
				return !first
			}})
			done, kv, ctx := make(chan error), markKV(t, c, "r"), with(t, 41)
			go func() { done <- second(kv.Put(ctx, "d", "mine")) }()
			synctest.Wait()
			require.Len(t, c.Calls(fakeetcd.Txn), 2, name)
			if tt.between != "" {
				srv.Put("fence/r", tt.between)
			}
			close(hold)
			err := <-done
			require.Equal(t, tt.stale, err != nil, "%s: %v", name, err)
			require.Len(t, c.Calls(fakeetcd.Txn), tt.requests, name)
			if tt.stale {
				require.Empty(t, contents(srv, "d"), name)
				require.Equal(t, tt.between, contents(srv, "fence/")["fence/r"], name)
			} else {
				require.Equal(t, map[string]string{"d": "mine"}, contents(srv, "d"), name)
				require.Equal(t, fence.Token(41), mustParse(t, srv, "fence/r"), name)
				raised := srv.Keys("fence/r")[0].ModRevision == srv.Rev()
				require.Equal(t, tt.between != "00000000000000000041", raised, "%s: not written for nothing", name)
			}
		}
	})
}

// A value that is not a mark accepts no token, whether it sorts before the token or after it. FuzzParse has the spellings.
func TestMarks_malformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m := newMarks(t, c)
		kv := markKV(t, c, "r")
		for _, value := range []string{
			"", "41", "99999999999999999999", strings.Repeat("\n", 1<<10),
			"00000000000000000054 00000000000000000041", "00000000000000000000 00000000000000000000",
			"00000000000000000041 @", "00000000000000000041 accounts", "00000000000000000041 @\xff",
		} {
			srv.Put("fence/r", value)
			rev := srv.Rev()
			for _, tok := range []fence.Token{1, 41, math.MaxInt64} {
				for _, err := range []error{
					m.Claim(with(t, tok), "r"), m.Check(with(t, tok), "r"), second(kv.Put(with(t, tok), "d", "")),
					m.Claim(of(t, "accounts", tok), "r"), m.Move(of(t, "accounts", tok), "r"),
					m.ClaimRead(reading(t, fence.ReadToken(tok)), "r"), m.CheckRead(reading(t, fence.ReadToken(tok)), "r"),
				} {
					require.ErrorIs(t, err, etcdfence.ErrMalformedMark, "%q", value)
					require.NotErrorIs(t, err, fence.ErrStale)
					require.ErrorContains(t, err, `at "fence/r": value `)
					require.Less(t, len(err.Error()), 250)
					require.NotContains(t, err.Error(), "\n")
				}
			}
			require.Equal(t, rev, srv.Rev())
		}
	})
}

// A lost answer to either request of a raise is told as it is; the same call again is safe.
func TestMarks_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for lost := range map[fakeetcd.Message]bool{fakeetcd.Request: true, fakeetcd.Answer: true} {
			for at := range 2 {
				srv, c := start(t)
				kv, n := markKV(t, c, "r"), 0
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{
					Lose: lost, Err: fakeetcd.ErrUnavailable,
					Match: func(fakeetcd.Call) bool { n++; return n == at+1 },
				})
				err := second(kv.Put(with(t, 41), "d", "mine"))
				require.Error(t, err)
				require.NotErrorIs(t, err, fence.ErrStale)
				require.Len(t, c.Calls(fakeetcd.Txn), at+1, "not sent again")
				done := lost == fakeetcd.Answer && at == 1
				require.Equal(t, done, len(contents(srv, "d")) == 1)
				require.Equal(t, done, len(contents(srv, "fence/")) == 1, "both or neither")
				require.NoError(t, kv.Claim(with(t, 41)))
				require.NoError(t, second(kv.Put(with(t, 41), "d", "mine")))
			}
		}
	})
}

// A late write arrives after the successor has claimed.
func TestMarks_KV_lateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		paused := srv.NewClient(t.Context())
		require.NoError(t, newMarks(t, c).Claim(with(t, 41), "r"))
		hold := make(chan struct{})
		paused.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Late: true})
		ctx, cancel := contextWithTimeout(t, time.Second)
		defer cancel()
		err := second(markKV(t, paused, "r").Put(fence.NewContext(ctx, 41), "d", "late"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, newMarks(t, c).Claim(with(t, 54), "r"))
		close(hold)
		synctest.Wait()
		require.Len(t, paused.Calls(fakeetcd.Txn), 1)
		require.NotZero(t, paused.Calls(fakeetcd.Txn)[0].Acted)
		require.Empty(t, contents(srv, "d"))
	})
}
