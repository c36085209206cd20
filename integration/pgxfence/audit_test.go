package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

func TestFence_History_whoHeldAndWhoWasRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		f, err := pgxfence.New(pgxfence.Options{Isolation: r.level, Attempts: 50, Log: pgxfence.DefaultLog})
		require.NoError(t, err)
		require.NoError(t, f.Migrate(t.Context(), r.pool))
		held := func(token fence.Token, name string) context.Context {
			return fence.NewHolderContext(t.Context(), token, fence.Holder{Name: name, TTL: 10 * time.Second})
		}
		nothing := func(context.Context, pgx.Tx) error { return nil }
		a, b, c := held(older, "a"), held(newer, "b"), held(newer+1, "c")

		require.NoError(t, f.Claim(a, r.pool, resource))
		require.NoError(t, f.Release(a, r.pool, resource, fence.Expired))
		require.NoError(t, f.Do(b, r.pool, resource, nothing))
		require.ErrorIs(t, f.Do(a, r.pool, resource, nothing), fence.ErrStale)
		// One trail with those who use the same tables through database/sql.
		other, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{Log: sqlfence.DefaultLog})
		require.NoError(t, err)
		require.NoError(t, other.Claim(c, r.store.DB(t), resource))

		tx, err := r.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: r.level})
		require.NoError(t, err)
		stale := f.Check(b, tx, resource)
		require.ErrorIs(t, stale, fence.ErrStale)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, f.LogRefusal(b, r.pool, errors.Join(stale)))

		tenures, refusals, err := f.History(t.Context(), r.pool, pgxfence.Query{Resource: resource})
		require.NoError(t, err)
		var got []string
		for _, e := range tenures {
			got = append(got, fmt.Sprintf("%d %s %v %s", int64(e.Token), e.Holder.Name, e.Holder.TTL, e.Cause))
		}
		for _, e := range refusals {
			got = append(got, fmt.Sprintf("%d < %d %s", int64(e.Token), int64(e.Highest), e.Holder.Name))
		}
		require.Equal(t, []string{"10 a 10s expired", "20 b 10s superseded", "21 c 10s ", "10 < 20 a", "20 < 21 b"}, got)

		window := pgxfence.Query{Since: tenures[2].Granted, Until: time.Now().Add(time.Hour), Limit: 1}
		tenures, _, err = f.History(t.Context(), r.pool, window)
		require.NoError(t, err)
		require.Len(t, tenures, 1)
		require.Equal(t, fence.Token(21), tenures[0].Token)
	})
}

func TestFence_auditBadInput(t *testing.T) {
	f := newFence(t, places[0])
	_, _, err := f.History(t.Context(), nil, pgxfence.Query{})
	require.ErrorContains(t, err, "db is nil")
	require.ErrorContains(t, f.LogRefusal(t.Context(), nil, nil), "db is nil")
	require.ErrorContains(t, f.Release(fence.NewContext(t.Context(), 1), nil, resource, fence.Explicit), "db is nil")
	_, err = pgxfence.New(pgxfence.Options{Log: pgxfence.DefaultTable})
	require.ErrorContains(t, err, "pgxfence: Options.Log is")
}
