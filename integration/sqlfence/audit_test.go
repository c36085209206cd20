package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
		require.NoError(t, r.do(a, resource, nothing))
		require.Equal(t, []string{"accounts 10 a 10s "}, brief(history(t, r, sqlfence.Query{})))
		require.NoError(t, r.release(a, resource, audit.CauseExpired))
		require.NoError(t, r.release(a, resource, audit.CauseExplicit), "it has ended")

		require.NoError(t, r.do(b, resource, nothing), "claims by itself")
		require.ErrorIs(t, r.do(a, resource, nothing), fence.ErrStale)
		require.ErrorIs(t, r.doShared(a, resource, nothing), fence.ErrStale)
		require.ErrorIs(t, r.claim(a, resource), fence.ErrStale)
		require.NoError(t, r.claim(c, resource))
		require.NoError(t, r.claim(c, "other"))
		require.ErrorIs(t, r.claim(a, "other"), fence.ErrStale)
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

		for _, c := range []struct {
			query sqlfence.Query
			want  []audit.Tenure
		}{
			{sqlfence.Query{Since: all[1].Granted.Add(time.Millisecond), Until: all[3].Granted}, all[1:3]},
			{sqlfence.Query{Since: all[2].Released}, all[2:]},
			{sqlfence.Query{Since: all[2].Released.Add(time.Millisecond)}, all[3:]},
			{sqlfence.Query{Limit: 2}, all[2:]}, // the newest
			{sqlfence.Query{Until: all[0].Granted}, nil},
			{sqlfence.Query{Resource: "accounts%"}, nil},
		} {
			got, _ := history(t, r, c.query)
			require.Equal(t, c.want, got)
		}
		_, some := history(t, r, sqlfence.Query{Since: refused[1].At, Until: refused[2].At})
		require.Equal(t, refused[1:2], some)
	})
}

// The row of a tenure is committed with the mark, or neither is.
func TestMarks_Check_auditsInTheCallersTransaction(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		audited(t, r)
		ctx := held(t, older, "a")
		undone := errors.New("undone")
		check := func(ctx context.Context, end error) error {
			return r.transaction(ctx, func(tx conn) error {
				return errors.Join(r.guard[check](ctx, tx, resource), end)
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
				require.NoError(t, r.guard[check](as(t, token), tx, "a"))
				return r.claim(as(t, older), fmt.Sprint("b", token))
			}))
		}
	})
}

// A path's holder has a tenure at the path's end. It is a writer also where a node above refuses it. Readers have
// neither tenures nor refusals there, but a reader's mark refuses a writer.
func TestMarks_History_pathsAndReaders(t *testing.T) {
	at(t, append(each, pgxPlace), func(t *testing.T, r *rig) {
		audited(t, r)
		require.NoError(t, r.claimPath(held(t, older, "a"), "a/b"))
		require.NoError(t, r.claimPath(held(t, newer, "b"), "a"))
		require.ErrorIs(t, r.claimPath(held(t, older, "a"), "a/b"), fence.ErrStale)

		require.NoError(t, r.claimRead(asReader(t, newer), resource))
		require.ErrorIs(t, r.claim(held(t, older, "a"), resource), fence.ErrStale)
		require.NoError(t, r.claim(held(t, newer+1, "c"), resource))
		refused := r.claimRead(asReader(t, newer), resource)
		require.ErrorIs(t, refused, fence.ErrStale)
		require.NoError(t, r.logRefusal(asReader(t, newer), refused))
		require.Equal(t, []string{
			"a/b 10 a 10s ", "a 20 b 10s ", "accounts 21 c 10s ",
			"a 10 < 20 a", "accounts 10 < 20 a",
		}, brief(history(t, r, sqlfence.Query{})))
	})
}

func TestMarks_missingLog(t *testing.T) {
	at(t, []place{sqlite, pgxPlace}, func(t *testing.T, r *rig) {
		nowhere := r.with(t, sqlfence.Options{Log: "nowhere"})
		_, _, err := nowhere.history(t.Context(), sqlfence.Query{})
		for _, err := range []error{err, nowhere.claim(as(t, older), resource)} {
			require.ErrorIs(t, err, sqlfence.ErrNoTable)
			require.ErrorContains(t, err, `"nowhere_refused"`)
		}
		require.NoError(t, r.claim(as(t, 1), resource), "the mark was not raised without its row")
	})
}

func TestMarks_History_ofDamagedRows(t *testing.T) {
	r := newRig(t, sqlite)
	audited(t, r)
	require.NoError(t, r.claim(as(t, newer), resource))
	require.ErrorIs(t, r.claim(as(t, older), resource), fence.ErrStale)
	for _, c := range []struct{ damage, want string }{
		{"_refused SET highest = 'never'", "highest"},
		{"_refused SET highest = 20, refused_at = 'never refused'", "never refused"},
		{" SET ttl_ms = 'never'", "ttl_ms"},
		{" SET ttl_ms = 0, granted_at = 'never granted'", "never granted"},
	} {
		r.must(t, "UPDATE fencing_token_log"+c.damage)
		_, _, err := r.history(t.Context(), sqlfence.Query{})
		require.ErrorContains(t, err, c.want)
	}
}
