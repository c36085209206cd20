package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// audited is a fence with a trail, at the rig's marks.
func audited(t *testing.T, r *rig) *sqlfence.Fence {
	t.Helper()
	f, err := sqlfence.New(r.dialect, sqlfence.Options{Isolation: r.level, Attempts: 50, Log: sqlfence.DefaultLog})
	require.NoError(t, err)
	require.NoError(t, f.Migrate(t.Context(), r.db))
	return f
}

// held is a context of a holder that is known.
func held(t *testing.T, token fence.Token, name string) context.Context {
	t.Helper()
	return fence.NewHolderContext(as(t, token), token, fence.Holder{Name: name, TTL: 10 * time.Second})
}

func history(t *testing.T, r *rig, f *sqlfence.Fence, q sqlfence.Query) ([]fence.Tenure, []fence.Refusal) {
	t.Helper()
	tenures, refusals, err := f.History(t.Context(), r.db, q)
	require.NoError(t, err)
	return tenures, refusals
}

// brief is a trail without its times.
func brief(tenures []fence.Tenure, refusals []fence.Refusal) []string {
	var all []string
	for _, e := range tenures {
		all = append(all, fmt.Sprintf("%s %d %s %v %s", e.Resource, int64(e.Token), e.Holder.Name, e.Holder.TTL, e.Cause))
	}
	for _, e := range refusals {
		all = append(all, fmt.Sprintf("%s %d < %d %s", e.Resource, int64(e.Token), int64(e.Highest), e.Holder.Name))
	}
	return all
}

func TestFence_History_whoHeldAndWhoWasRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f := audited(t, r)
		a, b, c := held(t, 10, "a"), held(t, 20, "b\x00\n\xff"), held(t, 30, strings.Repeat("ü", 1000))

		require.NoError(t, f.Claim(a, r.db, resource))
		require.NoError(t, f.Claim(a, r.db, resource), "again")
		require.NoError(t, f.Do(a, r.db, resource, nothing))
		require.Equal(t, []string{"accounts 10 a 10s "}, brief(history(t, r, f, sqlfence.Query{})))
		require.NoError(t, f.Release(a, r.db, resource, fence.Expired))
		require.NoError(t, f.Release(a, r.db, resource, fence.Explicit), "it has ended")

		require.NoError(t, f.Do(b, r.db, resource, nothing), "claims by itself")
		require.ErrorIs(t, f.Do(a, r.db, resource, nothing), fence.ErrStale)
		require.ErrorIs(t, f.DoShared(a, r.db, resource, nothing), fence.ErrStale)
		require.ErrorIs(t, f.Claim(a, r.db, resource), fence.ErrStale)
		require.NoError(t, f.Claim(c, r.db, resource))
		require.NoError(t, f.Claim(c, r.db, "other"))
		require.NoError(t, f.Release(c, r.db, "other", fence.Revoked))

		require.Equal(t, []string{
			"accounts 10 a 10s expired",
			"accounts 20 b  ? 10s superseded",
			"accounts 30 " + strings.Repeat("ü", 127) + " 10s ",
			"accounts 10 < 20 a", "accounts 10 < 20 a", "accounts 10 < 20 a",
		}, brief(history(t, r, f, sqlfence.Query{Resource: resource})))

		tenures, refusals := history(t, r, f, sqlfence.Query{})
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

func TestFence_History_window(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f := audited(t, r)
		for token := fence.Token(1); token <= 4; token++ {
			require.NoError(t, f.Claim(as(t, token), r.db, resource))
			require.Error(t, f.Claim(as(t, token-1), r.db, resource), "stale, or none")
			time.Sleep(2 * time.Millisecond) // SQLite's trail counts milliseconds
		}
		all, refused := history(t, r, f, sqlfence.Query{})
		require.Len(t, all, 4)
		require.Len(t, refused, 3)

		require.Equal(t, all[1:3], first(f.History(t.Context(), r.db, sqlfence.Query{Since: all[1].Granted.Add(time.Millisecond), Until: all[3].Granted})))
		require.Equal(t, all[2:], first(f.History(t.Context(), r.db, sqlfence.Query{Since: all[2].Released})))
		require.Equal(t, all[3:], first(f.History(t.Context(), r.db, sqlfence.Query{Since: all[2].Released.Add(time.Millisecond)})))
		require.Equal(t, all[2:], first(f.History(t.Context(), r.db, sqlfence.Query{Limit: 2})), "the newest")
		require.Empty(t, first(f.History(t.Context(), r.db, sqlfence.Query{Until: all[0].Granted})))
		require.Empty(t, first(f.History(t.Context(), r.db, sqlfence.Query{Resource: "accounts%"})))
		_, some := history(t, r, f, sqlfence.Query{Since: refused[1].At, Until: refused[2].At})
		require.Equal(t, refused[1:2], some)
	})
}

func first(tenures []fence.Tenure, _ []fence.Refusal, _ error) []fence.Tenure { return tenures }

// The row of a tenure is committed with the mark, or neither is.
func TestFence_Check_auditsInTheCallersTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f := audited(t, r)
		ctx := held(t, older, "a")
		undone := errors.New("undone")
		check := func(ctx context.Context, end error) error {
			tx, err := r.db.BeginTx(ctx, &sql.TxOptions{Isolation: r.level})
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			if err := errors.Join(f.Check(ctx, tx, resource), end); err != nil {
				return err
			}
			return tx.Commit()
		}
		require.ErrorIs(t, check(ctx, undone), undone)
		require.Empty(t, brief(history(t, r, f, sqlfence.Query{})))
		require.NoError(t, check(ctx, nil))
		require.Len(t, brief(history(t, r, f, sqlfence.Query{})), 1)
		require.NoError(t, check(ctx, nil))
		require.Equal(t, []string{"accounts 10 a 10s "}, brief(history(t, r, f, sqlfence.Query{})))

		stale := check(held(t, older-1, "z"), nil)
		require.ErrorIs(t, stale, fence.ErrStale)
		require.NoError(t, f.LogRefusal(held(t, older-1, "z"), r.db, fmt.Errorf("work: %w", stale)))
		require.NoError(t, f.LogRefusal(ctx, r.db, nil))
		require.NoError(t, f.LogRefusal(ctx, r.db, undone))
		require.Equal(t, []string{"accounts 10 a 10s ", "accounts 9 < 10 z"}, brief(history(t, r, f, sqlfence.Query{})))
	})
}

// Many holders, each with a claim, a write and a refusal of the one before it: the trail has every tenure once, all but the
// last superseded, and as many refusals as were returned.
func TestFence_History_underContention(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f := audited(t, r)
		const writers, each = 8, 10
		var mu sync.Mutex
		claimed, refused := map[fence.Token]bool{}, 0
		var running sync.WaitGroup
		for w := range writers {
			running.Go(func() {
				for i := range each {
					token := fence.Token(1 + i*writers + w)
					err := f.Claim(held(t, token, "w"), r.db, resource)
					if err == nil {
						err = f.Do(held(t, token, "w"), r.db, resource, nothing)
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
		tenures, refusals := history(t, r, f, sqlfence.Query{})
		require.Len(t, refusals, refused)
		require.Len(t, tenures, len(claimed))
		open := 0
		for _, e := range tenures {
			require.True(t, claimed[e.Token], "token %d", e.Token)
			if e.Cause == "" {
				open++
				require.Equal(t, fence.Token(writers*each), e.Token)
			} else {
				require.Equal(t, fence.Superseded, e.Cause)
			}
		}
		require.Equal(t, 1, open)
	})
}

func TestFence_auditBadInput(t *testing.T) {
	r := newRig(t, places[len(places)-1])
	ctx := as(t, older)

	_, _, err := r.f.History(ctx, r.db, sqlfence.Query{})
	require.ErrorContains(t, err, "Options.Log is empty")
	require.ErrorContains(t, r.f.Release(ctx, r.db, resource, fence.Explicit), "Options.Log is empty")
	require.ErrorContains(t, r.f.LogRefusal(ctx, r.db, nil), "Options.Log is empty")

	for log, want := range map[string]string{
		"a b":                     `Options.Log is "a b"`,
		strings.Repeat("x", 52):   "each 1 to 51 letters",
		sqlfence.DefaultTable:     "another table than that of the marks",
		"fencing_token_log; DROP": "want table or schema.table",
	} {
		_, err := sqlfence.New(sqlfence.SQLite, sqlfence.Options{Log: log})
		require.ErrorContains(t, err, want)
	}

	f, err := sqlfence.New(r.dialect, sqlfence.Options{Log: "nowhere"})
	require.NoError(t, err)
	err = f.Claim(ctx, r.db, resource)
	require.ErrorIs(t, err, sqlfence.ErrNoTable)
	require.ErrorContains(t, err, `"nowhere_refused"`)
	require.NoError(t, r.f.Claim(as(t, 1), r.db, resource), "the mark was not raised without its row")

	f = audited(t, r)
	require.ErrorContains(t, f.Release(ctx, r.db, resource, fence.Superseded), `cause is "superseded"`)
	require.ErrorContains(t, f.Release(t.Context(), r.db, resource, fence.Explicit), "invalid token")
	_, _, err = f.History(ctx, r.db, sqlfence.Query{Limit: 100_001})
	require.ErrorContains(t, err, "Query.Limit is 100001, want 0 for 1000, or 1 to 100000")
	now := time.Now()
	_, _, err = f.History(ctx, r.db, sqlfence.Query{Since: now, Until: now})
	require.ErrorContains(t, err, "Query.Since")
}
