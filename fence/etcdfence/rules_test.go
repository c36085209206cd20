package etcdfence_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// verbs returns all verbs, and ways to write the key d.
func verbs(m *etcdfence.Marks) map[string]fencetest.Verb {
	all := fencetest.VerbsOf(m.Claim, m.Check, m.Move, m.ClaimRead, m.CheckRead)
	for name, write := range writes {
		all[name] = fencetest.Verb{Call: func(ctx context.Context, resource string) error {
			kv, err := m.KV(resource)
			if err != nil {
				return err
			}
			return write(ctx, kv, "d", "new")
		}}
	}
	return all
}

// A write takes one request once the mark has the token and its lock. A mark that need not change is not written.
func TestMarks_rules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		told, sent := make(fencetest.Told, 9), 0
		strict, err := etcdfence.NewMarks(c, etcdfence.Options{Hooks: told.Hooks()})
		require.NoError(t, err)
		lax, err := etcdfence.NewMarks(c, etcdfence.Options{AllowUnnamed: true, Hooks: told.Hooks()})
		require.NoError(t, err)
		c.Inject(fakeetcd.Any, fakeetcd.Fault{Match: func(fakeetcd.Call) bool { sent++; return false }})
		rules := fencetest.Rules{
			Verbs: verbs(strict), Lax: verbs(lax), Told: told,
			Marks: func(t *testing.T, resource string) fencetest.Marks {
				t.Helper()
				value := contents(srv, "fence/"+resource)["fence/"+resource]
				m, ok := admission.ParseMarks(value)
				require.True(t, ok || value == "", "%q", value)
				return fencetest.Marks(m)
			},
		}
		rules.Watch = func(t *testing.T, _ string) func(fencetest.Step) {
			t.Helper()
			srv.Put("d", "before")
			rev := srv.Rev()
			sent = 0
			return func(s fencetest.Step) {
				_, writes := writes[s.Name]
				writes = writes && s.Err == nil
				require.Equal(t, writes, contents(srv, "d")["d"] != "before", "%+v", s)
				require.Equal(t, writes || s.Before != s.After, srv.Rev() > rev, "%+v", s)
				requests := 1
				if s.Err == nil && (s.Before != s.After || !s.Verb.Reads && !s.Verb.Looks && s.Lock != s.After.Lock) {
					requests = 2
				}
				require.Equal(t, requests, sent, "%+v", s)
			}
		}
		rules.Decide(t)
		rules.Watch = nil
		rules.Names(t, 1024)
	})
}

func TestMarks_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m, err := etcdfence.NewMarks(c, etcdfence.Options{})
		require.NoError(t, err)
		_, err = etcdfence.NewMarks(nil, etcdfence.Options{})
		require.ErrorContains(t, err, "kv is nil")
		_, err = etcdfence.NewMarks(c, etcdfence.Options{MaxEra: 32768})
		require.ErrorContains(t, err, "etcdfence: Options.MaxEra is 32768, want 1 to 32767")
		resources := map[string]string{"": "etcdfence: resource is empty, want 1 to 1024 bytes"}
		for bad, want := range map[string]string{
			strings.Repeat("x", 1025): " has 1025 bytes, want 1 to 1024",
			"a\x00":                   ` is "a\x00", want UTF-8 without NUL`,
			"\xff":                    ` is "\xff", want UTF-8`,
		} {
			_, err := etcdfence.NewMarks(c, etcdfence.Options{Prefix: bad})
			require.ErrorContains(t, err, "Options.Prefix"+want)
			resources[bad] = "etcdfence: resource" + want
		}
		fencetest.Refuse(t, verbs(m), resources)
		require.Empty(t, srv.Calls(fakeetcd.Any), "nothing was sent")

		// How an operator lowers a mark after a token was accepted that was never granted; see docs/guarantees.md.
		require.NoError(t, newMarks(t, c).Claim(with(t, math.MaxInt64), "orders"), "every era is allowed")
		require.ErrorIs(t, m.Claim(with(t, 41), "orders"), fence.ErrStale)
		srv.Put("fence/orders", "41 0")
		require.NoError(t, m.Claim(with(t, 54), "orders"))
	})
}

// A verb sees what changes the mark before its first or its second transaction: a newer or an older writer or reader,
// another lock, a move, a new name, or the loss of the name. The holder has token 41.
func TestMarks_interleaved(t *testing.T) {
	other := &fence.OtherLockError{Resource: "r", Token: 41, Lock: "accounts", Follows: "report"}
	otherReader := &fence.OtherLockError{Resource: "r", Token: 41, Read: true, Lock: "accounts", Follows: "report"}
	newer := &fence.StaleError{Resource: "r", Token: 41, Highest: 54}
	newerReader := &fence.StaleError{Resource: "r", Token: 41, Highest: 54, ByReader: true}
	for name, tt := range map[string]struct {
		verb            string
		lock            string // of the token; "" for none, "lax" for none where that is allowed
		at              int    // the transaction before which the mark changes
		before, between string // values of the mark; "" for none
		after           string // "" if the verb is refused
		requests        int
		refused         error
	}{
		"absent, newer between":    {"Put", "", 2, "", "54 0", "", 2, newer},
		"lower, older between":     {"Put", "", 2, "3 0", "7 0", "41 0", 3, nil},
		"lower, newer between":     {"Put", "", 2, "3 0", "54 0", "", 2, newer},
		"lower, the same value":    {"Put", "", 2, "3 0", "3 0", "41 0", 3, nil},
		"lower, malformed between": {"Put", "", 2, "3 0", "7", "", 2, etcdfence.ErrMalformedMark},

		"a reader, the first mark":  {"ClaimRead", "", 1, "", "7 0", "7 41", 3, nil},
		"a reader, an older reader": {"ClaimRead", "", 1, "7 0", "7 20", "7 41", 3, nil},
		"a reader, a newer reader":  {"ClaimRead", "", 1, "7 0", "7 54", "7 54", 2, nil},
		"a reader, a newer writer": {
			"ClaimRead", "", 1, "7 0", "54 0", "", 2, &fence.StaleError{Resource: "r", Token: 41, Highest: 54, Read: true},
		},

		"steady, a newer writer":        {"Put", "accounts", 1, "41 0 accounts", "54 0 accounts", "", 1, newer},
		"steady, a newer reader":        {"Put", "accounts", 1, "41 0 accounts", "41 54 accounts", "", 1, newerReader},
		"lower, a newer reader":         {"Put", "accounts", 2, "7 0 accounts", "7 54 accounts", "", 2, newerReader},
		"steady, moved to another lock": {"Put", "accounts", 1, "41 0 accounts", "41 0 report", "", 1, other},
		"steady, the name was lost":     {"Put", "accounts", 1, "41 0 accounts", "41 0", "41 0 accounts", 2, nil},
		"absent, another lock":          {"Put", "accounts", 2, "", "7 0 report", "", 2, other},
		"lower, another lock":           {"Put", "accounts", 2, "7 0 accounts", "7 0 report", "", 2, other},
		"without a name, the same lock": {"Put", "accounts", 2, "41 0", "41 0 accounts", "41 0 accounts", 3, nil},
		"unnamed, named by another": {
			"Put", "", 2, "7 0", "7 0 report", "", 2, &fence.OtherLockError{Resource: "r", Token: 41, Follows: "report"},
		},
		"unnamed, moved before its look":   {"Put", "lax", 1, "41 0 accounts", "41 0 report", "41 0 report", 2, nil},
		"unnamed, newer after its look":    {"Put", "lax", 2, "41 0 accounts", "54 0 accounts", "", 2, newer},
		"a reader, moved":                  {"ClaimRead", "accounts", 1, "7 0 accounts", "7 0 report", "", 2, otherReader},
		"a reader, named":                  {"CheckRead", "accounts", 1, "41 0", "41 0 accounts", "41 0 accounts", 2, nil},
		"a move, a write of the old lock":  {"Move", "accounts", 2, "7 0 report", "20 0 report", "41 0 accounts", 3, nil},
		"a move, a newer write of the old": {"Move", "accounts", 2, "7 0 report", "54 0 report", "", 2, newer},
		"a move, moved elsewhere":          {"Move", "accounts", 2, "7 0 report", "20 0 ledger", "41 0 accounts", 3, nil},
		"a move, undone":                   {"Move", "accounts", 1, "41 0 accounts", "41 0 report", "41 0 accounts", 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, c := start(t)
				if tt.before != "" {
					srv.Put("fence/r", tt.before)
				}
				m, err := etcdfence.NewMarks(c, etcdfence.Options{AllowUnnamed: tt.lock == "lax"})
				require.NoError(t, err)
				verb := verbs(m)[tt.verb]
				ctx := verb.Holder(t.Context(), 41, strings.TrimPrefix(tt.lock, "lax"))
				sent := len(c.Calls(fakeetcd.Any))
				hold, n := make(chan struct{}), 0
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Match: func(fakeetcd.Call) bool { n++; return n == tt.at }})
				done := make(chan error)
				go func() { done <- verb.Call(ctx, "r") }()
				synctest.Wait()
				require.Equal(t, tt.at, n)
				srv.Put("fence/r", tt.between)
				rev := srv.Rev()
				close(hold)
				err = <-done
				after := tt.after
				if errors.Is(err, etcdfence.ErrMalformedMark) {
					err = etcdfence.ErrMalformedMark
				}
				require.Equal(t, tt.refused, err)
				if tt.refused != nil {
					after = tt.between
					require.Empty(t, contents(srv, "d"))
				}
				require.Len(t, c.Calls(fakeetcd.Any), sent+tt.requests)
				require.Equal(t, after, contents(srv, "")["fence/r"])
				require.Equal(t, after != tt.between, srv.Keys("fence/r")[0].ModRevision > rev, "not written for nothing")
			})
		})
	}
}

// If the request or the answer of one of the transactions is lost, the verb returns the client's error and sends
// nothing again. Repeating the call is safe.
func TestMarks_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, transactions := range map[string]int{"Put": 2, "Claim": 2, "Move": 2, "ClaimRead": 1} {
			for _, lost := range []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer} {
				for at := 1; at <= transactions; at++ {
					srv, c := start(t)
					srv.Put("fence/r", "7 0 accounts")
					n := 0
					c.Inject(fakeetcd.Txn, fakeetcd.Fault{
						Lose: lost, Err: fakeetcd.ErrUnavailable, Match: func(fakeetcd.Call) bool { n++; return n == at },
					})
					verb, lock := verbs(newMarks(t, c))[name], "accounts"
					if verb.Moves {
						lock = "ledger"
					}
					after := admission.Marks{Write: 7, Lock: "accounts"}.
						After(admission.Bid{Token: 41, Read: verb.Reads, Lock: lock, Moves: verb.Moves}).String()
					ctx := verb.Context(t.Context(), 41, lock)
					err := verb.Call(ctx, "r")
					require.Error(t, err)
					require.NotErrorIs(t, err, fence.ErrStale)
					require.NotErrorIs(t, err, fence.ErrOtherLock)
					require.Len(t, c.Calls(fakeetcd.Txn), at, "not sent again")
					done := lost == fakeetcd.Answer && at == transactions
					require.Equal(t, done, contents(srv, "")["fence/r"] == after, "%s %v %d", name, lost, at)
					require.Equal(t, done && name == "Put", len(contents(srv, "d")) == 1, "both or neither")
					require.NoError(t, verb.Call(ctx, "r"))
					require.Equal(t, after, contents(srv, "")["fence/r"])
				}
			}
		}
	})
}
