package pgxfence_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

const (
	writers      = 16
	attemptsEnv  = "LEASEFENCE_SQL_ATTEMPTS"
	fewAttempts  = 2400
	takesOver    = 0.3 // of the writers that are refused, and
	takesOverAll = 0.02
)

// accepted is a write that was answered with success: the value it made of the row, and its token.
type accepted struct {
	n     int64
	token fence.Token
}

// Writers whose tokens change hands, at all levels and in all exec modes at once, in all forms and some of them through
// sqlfence, increment one row. No write is accepted after one with a newer token, and none that was accepted is lost:
// each has made another value of the row, and in the order of the values the tokens only grow.
func TestFence_random(t *testing.T) {
	attempts := int64(fewAttempts)
	if text := os.Getenv(attemptsEnv); text != "" {
		var err error
		attempts, err = strconv.ParseInt(text, 10, 64)
		require.NoError(t, err, attemptsEnv)
	}
	first := newRig(t, places[1])
	first.exec(t, "INSERT INTO data VALUES (2, 0, 0, 0, 0)") // fenced by its own column
	attempt := []func(ctx context.Context, token fence.Token) (int64, error){throughSQL(t, first)}
	for _, p := range places {
		r := &rig{place: p, store: first.store, f: newFence(t, p)}
		r.pool = r.open(t, nil)
		attempt = append(attempt, r.attempt)
	}

	var issued, begun, stale, again, rows atomic.Int64
	var mu sync.Mutex // guards history and odd
	var history []accepted
	var odd error
	began := time.Now()
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() {
			token := fence.Token(issued.Add(1))
			for begun.Add(1) <= attempts && t.Context().Err() == nil {
				if rand.Float64() < takesOverAll {
					token = fence.Token(issued.Add(1))
				}
				made, err := attempt[i%len(attempt)](fence.NewContext(t.Context(), token), token)
				switch {
				case err == nil && made == 0:
					rows.Add(1)
				case err == nil:
					mu.Lock()
					history = append(history, accepted{made, token})
					mu.Unlock()
				case errors.Is(err, fence.ErrStale):
					stale.Add(1)
					if rand.Float64() < takesOver {
						token = fence.Token(issued.Add(1))
					}
				case transient(err) || errors.Is(err, pgxfence.ErrUnclaimed):
					again.Add(1)
				default:
					mu.Lock()
					odd = err
					mu.Unlock()
					return
				}
			}
		})
	}
	running.Wait()
	require.NoError(t, odd)
	t.Logf("%d attempts, %d tokens, %s: %d accepted under the mark and %d in the row, %d refused as stale, "+
		"%d to begin again", attempts, issued.Load(), time.Since(began).Round(time.Millisecond),
		len(history), rows.Load(), stale.Load(), again.Load())

	require.Greater(t, len(history), int(attempts)/100, "too few for a verdict")
	slices.SortFunc(history, func(a, b accepted) int { return cmp.Compare(a.n, b.n) })
	for i, a := range history {
		require.EqualValues(t, i+1, a.n, "a write is lost, or another has overwritten it")
		require.LessOrEqual(t, history[max(i, 1)-1].token, a.token, "a stale write")
	}
	require.Equal(t, row{n: int64(len(history)), last: int64(history[len(history)-1].token)}, first.row(t))
	own := first.rowOf(t, 2)
	require.Equal(t, rows.Load(), own.n)
	require.Zero(t, own.stale)
}

// attempt is a write in a random form. It returns what it has made of the row, 0 for the row with a fence of its own.
func (r *rig) attempt(ctx context.Context, token fence.Token) (int64, error) {
	if rand.N(10) == 0 {
		return 0, r.f.UpdateRow(ctx, r.pool, pgxfence.Row{Table: "data", Key: "id", ID: 2}, fmt.Sprintf(
			"stale = stale + CASE WHEN last > %[1]d THEN 1 ELSE 0 END, n = n + 1, last = %[1]d", token))
	}
	if rand.N(4) == 0 {
		if err := r.f.Claim(ctx, r.pool, resource); err != nil {
			return 0, err
		}
	}
	var made int64
	err := r.run(ctx, forms[rand.N(len(forms))], nowhere, func(ctx context.Context, tx pgx.Tx) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		made = n + 1
		return write(ctx, tx, n, token)
	})
	return made, err
}

// throughSQL is the write of another program, which uses database/sql and the same table.
func throughSQL(t *testing.T, r *rig) func(ctx context.Context, token fence.Token) (int64, error) {
	t.Helper()
	db := r.store.DB(t)
	f, err := sqlfence.New(sqlfence.PostgreSQL, sqlfence.Options{Isolation: sql.LevelReadCommitted, Attempts: 50})
	require.NoError(t, err)
	return func(ctx context.Context, token fence.Token) (int64, error) {
		verb := f.Do
		if rand.N(2) == 0 {
			verb = f.DoShared
		}
		var made int64
		err := verb(ctx, db, resource, func(ctx context.Context, tx *sql.Tx) error {
			var n int64
			if err := tx.QueryRowContext(ctx, "SELECT n FROM data WHERE id = 1").Scan(&n); err != nil {
				return err
			}
			made = n + 1
			_, err := tx.ExecContext(ctx, writing(n, token))
			return err
		})
		return made, err
	}
}
