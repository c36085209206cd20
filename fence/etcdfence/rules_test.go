package etcdfence_test

import (
	"context"
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

// verbs returns all verbs, and ways to write a key.
func verbs(m *etcdfence.Marks) map[string]fencetest.Verb {
	all := fencetest.VerbsOf(m.Claim, m.Check, m.Move, m.ClaimRead, m.CheckRead)
	for name, write := range writes {
		all[name] = fencetest.Verb{Writes: true, Call: func(ctx context.Context, resource string) error {
			kv, err := m.KV(resource)
			if err != nil {
				return err
			}
			return write(ctx, kv, "d "+resource, "new")
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
		rules := fencetest.Rules{Verbs: verbs(strict), Lax: verbs(lax), Told: told, Marks: marksOn(srv)}
		rules.Watch = func(t *testing.T, resource string) func(fencetest.Step) {
			t.Helper()
			rev := srv.Rev()
			sent = 0
			return func(s fencetest.Step) {
				writes := s.Verb.Writes && s.Err == nil
				require.Equal(t, writes, dataOf(srv)(resource) == "new", "%+v", s)
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

// Another holder acts before and after each request of each verb.
func TestMarks_overlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		rules := fencetest.Rules{Verbs: verbs(newMarks(t, c)), Marks: marksOn(srv)}
		rules.Overlap(t, verbs(newMarks(t, srv.NewClient(t.Context()))), func(moment func()) {
			c.Inject(fakeetcd.Any, fakeetcd.Fault{OnRequest: moment, OnAnswer: moment})
		}, dataOf(srv))
	})
}

// dataOf returns the data of a resource.
func dataOf(srv *fakeetcd.Server) func(resource string) string {
	return func(resource string) string { return contents(srv, "d")["d "+resource] }
}

// marksOn reads the marks of a resource.
func marksOn(srv *fakeetcd.Server) func(t *testing.T, resource string) fencetest.Marks {
	return func(t *testing.T, resource string) fencetest.Marks {
		t.Helper()
		value := contents(srv, "fence/"+resource)["fence/"+resource]
		m, ok := admission.ParseMarks(value)
		require.True(t, ok || value == "", "%q", value)
		return fencetest.Marks(m)
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
