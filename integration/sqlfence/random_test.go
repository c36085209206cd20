package sqlfence_test

import (
	"cmp"
	"context"
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

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

const (
	writers      = 16
	attemptsEnv  = "LEASEFENCE_SQL_ATTEMPTS"
	fewAttempts  = 1600
	takesOver    = 0.3 // of the writers that are refused, and
	takesOverAll = 0.02
)

// accepted is a write that was answered with success: the value it made of the row, and its token.
type accepted struct {
	n     int64
	token fence.Token
}

// Writers whose tokens change hands, at all levels of the store at once and in all forms, increment one row. No write
// is accepted after one with a newer token, and none that was accepted is lost: each has made another value of the row,
// and in the order of the values the tokens only grow.
func TestFence_random(t *testing.T) {
	attempts := int64(fewAttempts)
	if text := os.Getenv(attemptsEnv); text != "" {
		var err error
		attempts, err = strconv.ParseInt(text, 10, 64)
		require.NoError(t, err, attemptsEnv)
	}
	for _, kind := range []storetest.Kind{storetest.PostgreSQL, storetest.MariaDB, storetest.SQLite} {
		t.Run(string(kind), func(t *testing.T) { random(t, kind, attempts) })
	}
}

func random(t *testing.T, kind storetest.Kind, attempts int64) {
	t.Helper()
	var rigs []*rig
	for _, p := range places {
		switch {
		case p.kind != kind || p.journal == "delete":
		case rigs == nil:
			rigs = append(rigs, newRig(t, p))
		default:
			f, err := sqlfence.New(p.dialect, sqlfence.Options{Isolation: p.level, Attempts: 50})
			require.NoError(t, err)
			rigs = append(rigs, &rig{place: p, db: rigs[0].db, f: f})
		}
	}
	r := rigs[0]
	r.exec(t, "INSERT INTO data VALUES (2, 0, 0, 0, 0)") // fenced by its own column
	r.db.SetMaxOpenConns(writers + 2)

	var issued, begun, stale, other, rows atomic.Int64
	var mu sync.Mutex // guards history and odd
	var history []accepted
	var odd error
	began := time.Now()
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() {
			r := rigs[i%len(rigs)]
			token := fence.Token(issued.Add(1))
			for begun.Add(1) <= attempts && t.Context().Err() == nil {
				if rand.Float64() < takesOverAll {
					token = fence.Token(issued.Add(1))
				}
				ctx := fence.NewContext(t.Context(), token)
				made, err := r.attemptOne(ctx, token)
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
				case transient(err) || errors.Is(err, sqlfence.ErrUnclaimed):
					other.Add(1)
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
		len(history), rows.Load(), stale.Load(), other.Load())

	require.Greater(t, len(history), int(attempts)/100, "too few for a verdict")
	slices.SortFunc(history, func(a, b accepted) int { return cmp.Compare(a.n, b.n) })
	for i, a := range history {
		require.EqualValues(t, i+1, a.n, "a write is lost, or another has overwritten it")
		before := history[max(i, 1)-1]
		require.LessOrEqual(t, before.token, a.token, "a stale write")
	}
	require.Equal(t, row{n: int64(len(history)), last: int64(history[len(history)-1].token)}, r.row(t))
	var own row
	require.NoError(t, r.db.QueryRowContext(t.Context(), "SELECT n, last, stale FROM data WHERE id = 2").
		Scan(&own.n, &own.last, &own.stale))
	require.Equal(t, rows.Load(), own.n)
	require.Zero(t, own.stale)
}

// attemptOne is a write in a random form. It returns what it has made of the row, 0 for the row with a fence of its
// own.
func (r *rig) attemptOne(ctx context.Context, token fence.Token) (int64, error) {
	if rand.N(10) == 0 {
		return 0, r.f.UpdateRow(ctx, r.db, sqlfence.Row{Table: "data", Key: "id", ID: 2}, fmt.Sprintf(
			"stale = stale + CASE WHEN last > %[1]d THEN 1 ELSE 0 END, n = n + 1, last = %[1]d", token))
	}
	if rand.N(4) == 0 {
		if err := r.f.Claim(ctx, r.db, resource); err != nil {
			return 0, err
		}
	}
	return r.counted(ctx, forms[rand.N(len(forms))], token)
}
