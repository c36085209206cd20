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
