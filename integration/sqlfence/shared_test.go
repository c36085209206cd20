package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// Two transactions of one holder are inside their guards at once, and a newer claim waits for both.
func TestDoShared_sideBySide(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		if r.kind == storetest.SQLite {
			return // one writer at a time
		}
		// Or else the two would claim, and a claim waits for those that are inside.
		require.NoError(t, r.f.Claim(as(t, older), r.db, resource))
		var inside, done sync.WaitGroup
		inside.Add(2)
		release := []chan struct{}{make(chan struct{}), make(chan struct{})}
		results := make(chan error, 2)
		for _, released := range release {
			done.Go(func() {
				entered := sync.OnceFunc(inside.Done)
				results <- r.f.DoShared(as(t, older), r.db, resource, func(context.Context, *sql.Tx) error {
					entered()
					<-released
					return nil
				})
			})
		}
		inside.Wait() // would not return if one waited for the other
		require.NoError(t, r.f.Claim(as(t, older), r.db, resource), "their own claim does not wait for them")
		claimed := make(chan error, 1)
		go func() { claimed <- r.f.Claim(as(t, newer), r.db, resource) }()
		r.awaitWaiter(t)
		third := make(chan error, 1)
		go func() { third <- r.f.DoShared(as(t, older), r.db, resource, nothing) }()
		if r.kind == storetest.PostgreSQL {
			// On MariaDB it queues behind the claim.
			require.ErrorIs(t, <-third, fence.ErrStale, "a third one gets ahead of the claim")
			third <- fence.ErrStale
		}
		close(release[0])
		require.NoError(t, <-results)
		r.awaitWaiter(t)
		require.Empty(t, claimed, "the claim has not waited for the second")
		close(release[1])
		require.NoError(t, <-results)
		require.NoError(t, <-claimed)
		require.ErrorIs(t, <-third, fence.ErrStale)
		done.Wait()
		require.ErrorIs(t, r.f.DoShared(as(t, older), r.db, resource, nothing), fence.ErrStale)
	})
}

// The plain form keeps even transactions of one holder apart.
func TestDo_oneAfterTheOther(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.f.Claim(as(t, older), r.db, resource))
		second := make(chan error, 1)
		reads := make(chan int64, 100)
		launched := false
		require.NoError(t, r.increment(as(t, older), do, func(at step) {
			if at != hasWritten || launched {
				return
			}
			launched = true
			go func() {
				second <- r.f.Do(as(t, older), r.db, resource, func(ctx context.Context, tx *sql.Tx) error {
					n, err := read(ctx, tx)
					reads <- n
					return errors.Join(err, write(ctx, tx, n, older))
				})
			}()
			r.awaitWaiter(t)
			require.Empty(t, second)
		}))
		require.NoError(t, <-second)
		require.NotEmpty(t, reads)
		for len(reads) > 0 {
			require.EqualValues(t, 1, <-reads, "it has read past its predecessor's write")
		}
		require.Equal(t, row{n: 2, last: int64(older)}, r.row(t))
	})
}

func nothing(context.Context, *sql.Tx) error { return nil }
