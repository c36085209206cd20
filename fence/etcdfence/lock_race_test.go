package etcdfence_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// Whatever comes before the first or the second transaction of a verb is seen by it: another lock, a move, a name, or its loss. The
// holder has token 41 of the lock accounts.
func TestMarks_locksInterleaved(t *testing.T) {
	const (
		accounts = " @accounts"
		report   = " @report"
	)
	other := func(token fence.Token, lock, follows string) error {
		return &fence.OtherLockError{Resource: "r", Token: token, Lock: lock, Follows: follows}
	}
	reader := &fence.OtherLockError{Resource: "r", Token: 41, Read: true, Lock: "accounts", Follows: "report"}
	for name, tt := range map[string]struct {
		verb            string
		at              int    // the transaction before which it comes
		before, between string // values of the mark; "" is none
		after           string
		requests        int
		refused         error
	}{
		"steady, moved to another lock":    {"Put", 1, value(41, 0) + accounts, value(41, 0) + report, "", 1, other(41, "accounts", "report")},
		"steady, older of another lock":    {"Put", 1, value(41, 0) + accounts, value(7, 0) + report, "", 1, other(41, "accounts", "report")},
		"steady, a longer name":            {"Put", 1, value(41, 0) + accounts, value(41, 0) + accounts + "2", "", 1, other(41, "accounts", "accounts2")},
		"steady, the name was lost":        {"Put", 1, value(41, 0) + accounts, value(41, 0), value(41, 0) + accounts, 2, nil},
		"absent, another lock":             {"Put", 2, "", value(7, 0) + report, "", 2, other(41, "accounts", "report")},
		"absent, a reader of another":      {"Put", 2, "", value(0, 7) + report, "", 2, other(41, "accounts", "report")},
		"absent, same lock, older":         {"Put", 2, "", value(7, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"absent, same lock, same":          {"Put", 2, "", value(41, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"absent, same without a name":      {"Put", 2, "", value(41, 0), value(41, 0) + accounts, 3, nil},
		"lower, another lock":              {"Put", 2, value(7, 0) + accounts, value(7, 0) + report, "", 2, other(41, "accounts", "report")},
		"without a name, another lock":     {"Put", 2, value(41, 0), value(41, 0) + report, "", 2, other(41, "accounts", "report")},
		"without a name, the same lock":    {"Put", 2, value(41, 0), value(41, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"without a name, no name again":    {"Put", 2, value(41, 0), value(41, 0), value(41, 0) + accounts, 3, nil},
		"a claim, another lock":            {"Claim", 2, "", value(7, 0) + report, "", 2, other(41, "accounts", "report")},
		"unnamed, named by another":        {"unnamed", 2, value(7, 0), value(7, 0) + report, "", 2, other(41, "", "report")},
		"unnamed, moved, its guess is out": {"lenient", 1, value(41, 0) + accounts, value(41, 0) + report, value(41, 0) + report, 2, nil},
		"unnamed, moved while it raises":   {"lenient", 2, value(7, 0) + accounts, value(7, 0) + report, value(41, 0) + report, 3, nil},
		"unnamed, newer after its look": {
			"lenient", 2, value(41, 0) + accounts, value(54, 0) + accounts, "", 2, &fence.StaleError{Resource: "r", Token: 41, Highest: 54},
		},
		"unnamed, a reader after its look": {
			"lenient", 2, value(41, 0) + accounts, value(41, 54) + accounts, "", 2,
			&fence.StaleError{Resource: "r", Token: 41, Highest: 54, ByReader: true},
		},
		"a reader, another lock":          {"ClaimRead", 1, "", value(7, 0) + report, "", 2, reader},
		"a reader, moved":                 {"ClaimRead", 1, value(7, 0) + accounts, value(7, 0) + report, "", 2, reader},
		"a reader, named by another":      {"CheckRead", 1, value(41, 0), value(41, 0) + report, "", 2, reader},
		"a reader, named":                 {"CheckRead", 1, value(41, 0), value(41, 0) + accounts, value(41, 0) + accounts, 2, nil},
		"a move, a write of the old lock": {"Move", 2, value(7, 0) + report, value(20, 0) + report, value(41, 0) + accounts, 3, nil},
		"a move, a reader of the old":     {"Move", 2, value(7, 0) + report, value(7, 20) + report, value(41, 0) + accounts, 3, nil},
		"a move, a newer write of the old": {
			"Move", 2, value(7, 0) + report, value(54, 0) + report, "", 2, &fence.StaleError{Resource: "r", Token: 41, Highest: 54},
		},
		"a move, moved elsewhere": {"Move", 2, value(7, 0) + report, value(20, 0) + " @ledger", value(41, 0) + accounts, 3, nil},
		"a move, done by another": {"Move", 2, value(7, 0) + report, value(41, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"a move, undone":          {"Move", 1, value(41, 0) + accounts, value(41, 0) + report, value(41, 0) + accounts, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, c := start(t)
				if tt.before != "" {
					srv.Put("fence/r", tt.before)
				}
				m, ctx := newMarks(t, c), of(t, "accounts", 41)
				switch tt.verb {
				case "lenient":
					m, ctx = lenient(t, c), with(t, 41)
				case "unnamed":
					ctx = with(t, 41)
				case "ClaimRead", "CheckRead":
					ctx = readerOf(t, "accounts", 41)
				}
				kv, err := m.KV("r")
				require.NoError(t, err)
				if tt.verb == "lenient" && tt.at == 1 { // so that it has a guess
					require.NoError(t, second(kv.Put(ctx, "e", "")))
				}
				verb := verbsOf(m)[tt.verb]
				if verb == nil {
					verb = func(ctx context.Context, _ string) error { return second(kv.Put(ctx, "d", "mine")) }
				}
				sent := len(c.Calls(fakeetcd.Any))
				hold, n := make(chan struct{}), 0
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Match: func(fakeetcd.Call) bool { n++; return n == tt.at }})
				done := make(chan error)
				go func() { done <- verb(ctx, "r") }()
				synctest.Wait()
				require.Equal(t, tt.at, n)
				srv.Put("fence/r", tt.between)
				close(hold)
				require.Equal(t, tt.refused, <-done)
				require.Len(t, c.Calls(fakeetcd.Any), sent+tt.requests)
				after := tt.after
				if tt.refused != nil {
					after = tt.between
					require.Empty(t, contents(srv, "d"))
				}
				require.Equal(t, after, contents(srv, "")["fence/r"])
			})
		})
	}
}

// Writes of the old lock that arrive after a move, of a tenure that has claimed and of one that raises the mark, and a move that
// arrives after the next one.
func TestMarks_Move_late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, claimed := range map[string]bool{"its holder has claimed": true, "a write that raises the mark": false} {
			srv, c := start(t)
			paused, m := srv.NewClient(t.Context()), newMarks(t, c)
			before := fence.Token(7)
			if claimed {
				before = 41
			}
			require.NoError(t, m.Claim(of(t, "accounts", before), "r"))
			late := func(at int, do func(ctx context.Context) error) (arrives func()) {
				hold, sent := make(chan struct{}), 0
				paused.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Late: true, Match: func(fakeetcd.Call) bool {
					sent++
					return sent == at
				}})
				ctx, cancel := contextWithTimeout(t, time.Second)
				defer cancel()
				require.ErrorIs(t, do(ctx), context.DeadlineExceeded, name)
				return func() { close(hold); synctest.Wait() }
			}
			at := map[bool]int{true: 1, false: 2}[claimed]
			arrives := late(at, func(ctx context.Context) error {
				ctx = fence.WithLock(fence.NewContext(ctx, 41), "accounts")
				return second(markKV(t, paused, "r").Put(ctx, "d", "late"))
			})
			require.NoError(t, m.Move(of(t, "ledger", 41), "r"))
			arrives()
			require.Equal(t, map[string]string{"fence/r": value(41, 0) + " @ledger"}, contents(srv, ""), name)

			arrives = late(2, func(ctx context.Context) error {
				return newMarks(t, paused).Move(fence.WithLock(fence.NewContext(ctx, 60), "accounts"), "r")
			})
			require.NoError(t, m.Claim(of(t, "ledger", 54), "r"))
			arrives()
			require.Equal(t, map[string]string{"fence/r": value(54, 0) + " @ledger"}, contents(srv, ""), name)
		}
	})
}

// A lost message is told as it is, and the same call again is safe, whether the resource was moved or not.
func TestMarks_Move_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, lost := range []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer} {
			srv, c := start(t)
			m, n := newMarks(t, c), 0
			srv.Put("fence/r", value(41, 0)+" @accounts")
			c.Inject(fakeetcd.Txn, fakeetcd.Fault{
				Lose: lost, Err: fakeetcd.ErrUnavailable, Match: func(fakeetcd.Call) bool { n++; return n == 2 },
			})
			err := m.Move(of(t, "ledger", 54), "r")
			require.Error(t, err)
			require.NotErrorIs(t, err, fence.ErrStale)
			require.NotErrorIs(t, err, fence.ErrOtherLock)
			require.Len(t, c.Calls(fakeetcd.Txn), 2, "not sent again")
			require.Equal(t, lost == fakeetcd.Answer, contents(srv, "")["fence/r"] == value(54, 0)+" @ledger")
			require.NoError(t, m.Move(of(t, "ledger", 54), "r"))
			require.Equal(t, map[string]string{"fence/r": value(54, 0) + " @ledger"}, contents(srv, ""))
		}
	})
}

// An illegal name is refused before anything is sent, the longest legal one is not, and no name is taken for a mark.
func TestMarks_boundsLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m := newMarks(t, c)
		for lock, want := range map[string]string{
			strings.Repeat("l", 2305): "its lock's name has 2305 bytes, want 1 to 2304",
			"a\x00":                   `its lock's name is "a\x00", want UTF-8 without NUL`,
			"\xff":                    `its lock's name is "\xff", want UTF-8 without NUL`,
		} {
			for verb, call := range verbsOf(m) {
				ctx := of(t, lock, 41)
				if strings.HasSuffix(verb, "Read") {
					ctx = readerOf(t, lock, 41)
				}
				err := call(ctx, "r")
				require.ErrorIs(t, err, fence.ErrInvalidToken)
				require.EqualError(t, err, `etcdfence: token for "r": fence: invalid token: `+want, verb)
			}
		}
		for _, ctx := range []context.Context{with(t, 41), fence.WithLock(with(t, 41), "accounts", "stock"), fence.WithLock(with(t, 41))} {
			err := m.Move(ctx, "r")
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, `token for "r": fence: invalid token: its context has no name of a lock, or several, want`)
		}
		require.ErrorContains(t, m.Move(readerOf(t, "accounts", 41), "r"), "the context carries a reader's")
		require.ErrorContains(t, m.Move(of(t, "accounts", 41), ""), "resource is empty")
		require.Empty(t, srv.Calls(fakeetcd.Any), "nothing was sent")

		for i, lock := range []string{
			strings.Repeat("l", 2304), " ", "@", " @", "a b @ c", "00000000000000000060", " 00000000000000000060", "@00000000000000000060", "a\n",
		} {
			resource := strings.Repeat("r", i+1)
			require.NoError(t, m.ClaimRead(readerOf(t, lock, 54), resource))
			require.NoError(t, m.Claim(of(t, lock, 55), resource), "%q", lock)
			require.NoError(t, m.Check(of(t, lock, 55), resource), "%q", lock)
			require.NoError(t, m.ClaimRead(readerOf(t, lock, 57), resource), "%q", lock)
			require.ErrorIs(t, m.Check(of(t, lock, 56), resource), fence.ErrStale, "%q", lock)
			require.ErrorIs(t, m.Check(of(t, lock[1:]+"x", 60), resource), fence.ErrOtherLock, "%q", lock)
			require.Equal(t, value(55, 57)+" @"+lock, contents(srv, "fence/")["fence/"+resource])
		}
	})
}

// The contexts of locks carry what a mark needs. In the function of an inner lock, a write under the outer one has to say so.
func TestMarks_nestedLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		s, err := lease.NewSession(t.Context(), c.Client, lease.Options{Prefix: "app/"})
		require.NoError(t, err)
		defer s.Close(t.Context()) //nolint:errcheck // the server ends with the test
		kv := markKV(t, c, "rows")
		put := func(ctx context.Context, value string) error { return second(kv.Put(ctx, "d", value)) }
		err = s.Do(t.Context(), "accounts", func(accounts context.Context, token fence.Token) error {
			require.NoError(t, kv.Claim(accounts))
			require.Equal(t, etcdfence.Format(token)+" @app/accounts", contents(srv, "fence/")["fence/rows"])
			return s.Do(accounts, "report", func(report context.Context, token fence.Token) error {
				require.Equal(t, &fence.OtherLockError{
					Resource: "rows", Token: token, Lock: "app/report", Follows: "app/accounts",
				}, put(report, "wrong"))
				require.NoError(t, put(accounts, "outer"))
				return put(fence.ForLock(report, "app/accounts"), "inner")
			})
		})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"d": "inner"}, contents(srv, "d"))
	})
}
