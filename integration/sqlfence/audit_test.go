package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// audited gives the rig's fence an audit trail.
func audited(t *testing.T, r *rig) {
	t.Helper()
	r.adapter = r.with(t, sqlfence.Options{Attempts: 50, Log: sqlfence.DefaultLog})
	require.NoError(t, r.migrate(t.Context()))
}

// held returns the context of a holder with a name.
func held(t *testing.T, token fence.Token, name string) context.Context {
	t.Helper()
	return audit.NewContext(as(t, token), audit.Holder{Name: name, TTL: 10 * time.Second})
}

func history(t *testing.T, r *rig, q sqlfence.Query) ([]audit.Tenure, []audit.Refusal) {
	t.Helper()
	tenures, refusals, err := r.history(t.Context(), q)
	require.NoError(t, err)
	return tenures, refusals
}

// brief returns a trail as text, without its times.
func brief(tenures []audit.Tenure, refusals []audit.Refusal) []string {
	var all []string
	for _, e := range tenures {
		all = append(all, fmt.Sprintf("%s %d %s %v %s", e.Resource, int64(e.Token), e.Holder.Name, e.Holder.TTL, e.Cause))
	}
	for _, e := range refusals {
		all = append(all, fmt.Sprintf("%s %d < %d %s", e.Resource, int64(e.Token), int64(e.Highest), e.Holder.Name))
	}
	return all
}

func TestMarks_History_whoHeldAndWhoWasRefused(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		audited(t, r)
		a, b, c := held(t, 10, "a"), held(t, 20, "b\x00\n\xff🦊"), held(t, 30, strings.Repeat("ü", 1000))

		require.NoError(t, r.claim(a, resource))
		require.NoError(t, r.claim(a, resource), "again")
		require.NoError(t, r.do(a, resource, false, nothing))
		require.Equal(t, []string{"accounts 10 a 10s "}, brief(history(t, r, sqlfence.Query{})))
		require.NoError(t, r.release(a, resource, audit.CauseExpired))
		require.NoError(t, r.release(a, resource, audit.CauseExplicit), "it has ended")

		require.NoError(t, r.do(b, resource, false, nothing), "claims by itself")
		require.ErrorIs(t, r.do(a, resource, false, nothing), fence.ErrStale)
		require.ErrorIs(t, r.do(a, resource, true, nothing), fence.ErrStale)
		require.ErrorIs(t, r.claim(a, resource), fence.ErrStale)
		require.NoError(t, r.claim(c, resource))
		require.NoError(t, r.claim(c, "other"))
		require.NoError(t, r.release(c, "other", audit.CauseRevoked))

		require.Equal(t, []string{
			"accounts 10 a 10s expired",
			"accounts 20 b  ?? 10s superseded",
			"accounts 30 " + strings.Repeat("ü", 127) + " 10s ",
			"accounts 10 < 20 a", "accounts 10 < 20 a", "accounts 10 < 20 a",
		}, brief(history(t, r, sqlfence.Query{Resource: resource})))

		tenures, refusals := history(t, r, sqlfence.Query{})
		require.Len(t, tenures, 4)
		for _, e := range tenures {
			require.WithinDuration(t, time.Now(), e.Granted, time.Minute)
			require.Equal(t, time.UTC, e.Granted.Location())
			require.Equal(t, e.Cause == "", e.Released.IsZero())
			if e.Cause != "" {
				require.False(t, e.Released.Before(e.Granted))
			}
		}
		require.WithinDuration(t, time.Now(), refusals[0].At, time.Minute)
	})
}

func TestMarks_History_window(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		audited(t, r)
		for token := fence.Token(1); token <= 4; token++ {
			require.NoError(t, r.claim(as(t, token), resource))
			require.Error(t, r.claim(as(t, token-1), resource), "stale, or none")
			time.Sleep(2 * time.Millisecond) // SQLite's trail counts milliseconds
		}
		all, refused := history(t, r, sqlfence.Query{})
		require.Len(t, all, 4)
		require.Len(t, refused, 3)

		require.Equal(t, all[1:3], first(r.history(t.Context(), sqlfence.Query{Since: all[1].Granted.Add(time.Millisecond), Until: all[3].Granted})))
		require.Equal(t, all[2:], first(r.history(t.Context(), sqlfence.Query{Since: all[2].Released})))
		require.Equal(t, all[3:], first(r.history(t.Context(), sqlfence.Query{Since: all[2].Released.Add(time.Millisecond)})))
		require.Equal(t, all[2:], first(r.history(t.Context(), sqlfence.Query{Limit: 2})), "the newest")
		require.Empty(t, first(r.history(t.Context(), sqlfence.Query{Until: all[0].Granted})))
		require.Empty(t, first(r.history(t.Context(), sqlfence.Query{Resource: "accounts%"})))
		_, some := history(t, r, sqlfence.Query{Since: refused[1].At, Until: refused[2].At})
		require.Equal(t, refused[1:2], some)
	})
}

func first(tenures []audit.Tenure, _ []audit.Refusal, _ error) []audit.Tenure { return tenures }

// The row of a tenure is committed with the mark, or neither is.
func TestMarks_Check_auditsInTheCallersTransaction(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		audited(t, r)
		ctx := held(t, older, "a")
		undone := errors.New("undone")
		check := func(ctx context.Context, end error) error {
			return r.transaction(ctx, func(tx conn) error {
				return errors.Join(r.check(ctx, tx, resource, false), end)
			})
		}
		require.ErrorIs(t, check(ctx, undone), undone)
		require.Empty(t, brief(history(t, r, sqlfence.Query{})))
		require.NoError(t, check(ctx, nil))
		require.Len(t, brief(history(t, r, sqlfence.Query{})), 1)
		require.NoError(t, check(ctx, nil))
		require.Equal(t, []string{"accounts 10 a 10s "}, brief(history(t, r, sqlfence.Query{})))

		stale := check(held(t, older-1, "z"), nil)
		require.ErrorIs(t, stale, fence.ErrStale)
		inner := audit.NewContext(fence.NewContext(held(t, older-1, "z"), newer), audit.Holder{Name: "of another token"})
		require.NoError(t, r.logRefusal(inner, fmt.Errorf("work: %w", stale)))
		require.NoError(t, r.logRefusal(ctx, nil))
		require.NoError(t, r.logRefusal(ctx, undone))
		require.Equal(t, []string{"accounts 10 a 10s ", "accounts 9 < 10 z"}, brief(history(t, r, sqlfence.Query{})))
	})
}

// A transaction that has raised a mark locks no gaps in the trail, where other resources insert their rows. At first
// the tenure before is not in the trail.
func TestMarks_Check_trailDelaysNoOtherResource(t *testing.T) {
	at(t, []place{readCommitted, mariaDB}, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), "a"))
		audited(t, r)
		for token := newer; token <= newer+1; token++ {
			require.NoError(t, r.transaction(as(t, token), func(tx conn) error {
				require.NoError(t, r.check(as(t, token), tx, "a", false))
				return r.claim(as(t, older), fmt.Sprint("b", token))
			}))
		}
	})
}

// A path's holder has a tenure at the path's end. It is a writer also where a node above refuses it.
func TestMarks_History_paths(t *testing.T) {
	at(t, append(each, pgxPlace), func(t *testing.T, r *rig) {
		audited(t, r)
		require.NoError(t, r.claimPath(held(t, older, "a"), "a/b"))
		require.NoError(t, r.claimPath(held(t, newer, "b"), "a"))
		require.ErrorIs(t, r.claimPath(held(t, older, "a"), "a/b"), fence.ErrStale)
		require.Equal(t, []string{"a/b 10 a 10s ", "a 20 b 10s ", "a 10 < 20 a"}, brief(history(t, r, sqlfence.Query{})))
	})
}

// Many holders, each with a claim, a write and a refusal of the one before it: the trail has every tenure once, all but
// the last superseded, and as many refusals as were returned.
func TestMarks_History_underContention(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		audited(t, r)
		const writers, each = 8, 10
		var mu sync.Mutex
		claimed, refused := map[fence.Token]bool{}, 0
		var running sync.WaitGroup
		for w := range writers {
			running.Go(func() {
				for i := range each {
					token := fence.Token(1 + i*writers + w)
					err := r.claim(held(t, token, "w"), resource)
					if err == nil {
						err = r.do(held(t, token, "w"), resource, false, nothing)
						mu.Lock()
						claimed[token] = true
						mu.Unlock()
					}
					mu.Lock()
					if errors.Is(err, fence.ErrStale) {
						refused++
						err = nil
					}
					mu.Unlock()
					if err != nil {
						t.Errorf("token %d: %v", token, err)
					}
				}
			})
		}
		running.Wait()
		tenures, refusals := history(t, r, sqlfence.Query{})
		require.Len(t, refusals, refused)
		require.Len(t, tenures, len(claimed))
		open := 0
		for _, e := range tenures {
			require.True(t, claimed[e.Token], "token %d", e.Token)
			if e.Cause == "" {
				open++
				require.Equal(t, fence.Token(writers*each), e.Token)
			} else {
				require.Equal(t, audit.CauseSuperseded, e.Cause)
			}
		}
		require.Equal(t, 1, open)
	})
}

func TestMarks_auditBadInput(t *testing.T) {
	at(t, []place{sqlite, pgxPlace}, func(t *testing.T, r *rig) {
		ctx := as(t, older)
		_, _, err := r.history(ctx, sqlfence.Query{})
		require.ErrorContains(t, err, "Options.Log is empty")
		require.ErrorContains(t, r.release(ctx, resource, audit.CauseExplicit), "Options.Log is empty")
		require.ErrorContains(t, r.logRefusal(ctx, nil), "Options.Log is empty")

		for log, want := range map[string]string{
			"a b":                     `Options.Log is "a b"`,
			strings.Repeat("x", 52):   "each 1 to 51 letters",
			sqlfence.DefaultTable:     "another table than that of the marks",
			"fencing_token_log; DROP": "want table or schema.table",
		} {
			_, err := newSQL(nil, r.dialect(), sqlfence.Options{Log: log})
			require.ErrorContains(t, err, "sqlfence: ")
			require.ErrorContains(t, err, want)
			_, err = newPGX(nil, sqlfence.Options{Log: log})
			require.ErrorContains(t, err, "pgxfence: ")
			require.ErrorContains(t, err, want)
		}

		err = r.with(t, sqlfence.Options{Log: "nowhere"}).claim(ctx, resource)
		require.ErrorIs(t, err, sqlfence.ErrNoTable)
		require.ErrorContains(t, err, `"nowhere_refused"`)
		require.NoError(t, r.claim(as(t, 1), resource), "the mark was not raised without its row")

		audited(t, r)
		require.ErrorContains(t, r.release(ctx, resource, audit.CauseSuperseded), `cause is "superseded"`)
		require.ErrorContains(t, r.release(t.Context(), resource, audit.CauseExplicit), "invalid token")
		_, _, err = r.history(ctx, sqlfence.Query{Limit: 100_001})
		require.ErrorContains(t, err, "Query.Limit is 100001, want 0 for 1000, or 1 to 100000")
		now := time.Now()
		_, _, err = r.history(ctx, sqlfence.Query{Since: now, Until: now})
		require.ErrorContains(t, err, "Query.Since")
	})
}
