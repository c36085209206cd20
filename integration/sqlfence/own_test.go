package sqlfence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// The plain forms serialize even the transactions of one holder, and each reads what those before it have written. So a
// read inside Do shows the outcome of an earlier call that is unknown, and a plain SELECT does not.
func TestMarks_plainFormsRunOneAfterTheOther(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range forms {
			for _, then := range []form{do, check} {
				if then == check && how.shared() && r.snapshots() {
					continue // the shared forms do not write the mark, so an older snapshot does not fail
				}
				t.Run(fmt.Sprintf("%s, then %s", how, then), func(t *testing.T) { r.oneAfterTheOther(t, resource, how, then) })
			}
		}
		t.Run("CheckPath", func(t *testing.T) { r.oneAfterTheOther(t, resource+"/b", checkPath, checkPath) })
	})
}

func (r *rig) oneAfterTheOther(t *testing.T, resource string, how, then form) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claimPath(as(t, older), resource)) // of one node, it equals Claim
	second := make(chan error, 1)
	reads := make(chan int64, 100)
	_, err := r.incrementOn(as(t, older), resource, how, func(at step) {
		if at != hasWritten {
			return
		}
		if !r.readersLock() {
			require.Zero(t, r.row(t).n, "a plain read")
		}
		go func() {
			second <- r.runOn(as(t, older), resource, then, nowhere, func(ctx context.Context, tx conn) error {
				n, err := read(ctx, tx)
				reads <- n
				if err != nil {
					return err
				}
				return write(ctx, tx, n, older)
			})
		}()
		r.awaitWaiter(t)
		require.Empty(t, second)
	})
	require.NoError(t, err)
	err = <-second
	close(reads)
	for n := range reads {
		require.EqualValues(t, 1, n, "it has not read its predecessor's write")
	}
	if then.checks() && transient(err) {
		return // the caller begins again
	}
	require.NoError(t, err)
	require.Equal(t, row{n: 2, last: int64(older)}, r.row(t))
}

// Two transactions of one holder, or of two branches, are inside their guards at once. A newer claim waits for both, and
// refuses later ones: otherwise transactions that overlap would keep it waiting.
func TestMarks_sharedFormsRunSideBySide(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		if r.kind == storetest.SQLite {
			return // one writer at a time
		}
		for _, how := range []form{doShared, checkShared} {
			same := [2]string{resource, resource}
			t.Run(string(how), func(t *testing.T) {
				r.sideBySide(t, how, same, func() error { return r.claim(as(t, newer), resource) })
			})
			t.Run(string(how)+", reader", func(t *testing.T) {
				r.sideBySide(t, how, same, func() error { return r.claimRead(asReader(t, newer), resource) })
			})
		}
		branches := [2]string{resource + "/b", resource + "/c"}
		t.Run("CheckPath", func(t *testing.T) {
			r.sideBySide(t, checkPath, branches, func() error { return r.claimPath(as(t, newer), resource) })
		})
	})
}

func (r *rig) sideBySide(t *testing.T, how form, nodes [2]string, newerClaims func() error) {
	t.Helper()
	r.reset(t)
	// Without this the two would claim, and a claim waits for transactions with a lock on the mark.
	require.NoError(t, r.claimPath(as(t, older), nodes[0]))
	require.NoError(t, r.claimPath(as(t, older), nodes[1]))
	results, release := twoInside(t, func(i int, body func() error) error {
		return r.runOn(as(t, older), nodes[i], how, nowhere, func(context.Context, conn) error { return body() })
	})
	if how.shared() {
		require.NoError(t, r.claim(as(t, older), resource), "their own claim does not wait for them")
	}
	claimed := make(chan error, 1)
	go func() { claimed <- newerClaims() }()
	r.awaitWaiter(t)
	third := make(chan error, 1)
	go func() { third <- r.runOn(as(t, older), nodes[0], how, nowhere, nothing) }()
	if r.kind == storetest.PostgreSQL && how.shared() {
		// On MariaDB it queues behind the claim, and a path's guard queues behind the first of its node.
		require.ErrorIs(t, <-third, fence.ErrStale, "a later transaction passes the claim")
		third <- fence.ErrStale
	}
	close(release[0])
	require.NoError(t, <-results)
	r.awaitWaiter(t)
	require.Empty(t, claimed, "the claim has not waited for the second")
	close(release[1])
	require.NoError(t, <-results)
	require.NoError(t, <-claimed)
	if err := <-third; !how.checks() || !transient(err) { // the caller begins again
		require.ErrorIs(t, err, fence.ErrStale)
	}
	require.ErrorIs(t, r.runOn(as(t, older), nodes[0], how, nowhere, nothing), fence.ErrStale)
}

// twoInside runs two transactions that are both inside their guards, each until its channel is closed.
func twoInside(t *testing.T, transaction func(i int, body func() error) error) (chan error, [2]chan struct{}) {
	t.Helper()
	release := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	entered, results := make(chan struct{}, 2), make(chan error, 2)
	for i, released := range release {
		go func() {
			results <- transaction(i, func() error {
				entered <- struct{}{}
				<-released
				return nil
			})
		}()
	}
	for range release {
		select {
		case <-entered:
		case <-as(t, older).Done():
			close(release[0])
			close(release[1])
			t.Fatal("one waits for the other")
		}
	}
	return results, release
}

// Conflicts at the mark do not count as attempts: neither those of one holder's goroutines, nor those of a claim with
// an older holder's transactions. On PostgreSQL at a level with a snapshot, each COMMIT fails the guards that have
// older snapshots.
//
// At Serializable, PostgreSQL may also fail a COMMIT after the guard: a transaction drops its predicate locks shortly
// after the next one has got its row lock, so the two can count as concurrent. That is a serialization failure like any
// other, and an attempt.
func TestDo_meetingAtTheMarkIsNoAttempt(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		if !r.snapshots() {
			return
		}
		r.adapter = r.with(t, sqlfence.Options{Attempts: 1, Log: sqlfence.DefaultLog})
		require.NoError(t, r.migrate(t.Context()))
		const hands = 4
		results := make(chan error, hands)
		for token := older; token < older+5; token++ {
			require.NoError(t, r.claim(as(t, token), resource))
			ctx, next := as(t, token), as(t, token+1)
			for _, calls := range []int{10, 1_000_000} { // the second time until it is refused
				for range hands {
					go func() {
						var err error
						for i := 0; i < calls && err == nil; i++ {
							err = r.do(ctx, resource, false, nothing)
							if err != nil && strings.Contains(err.Error(), "read/write dependencies") {
								err = nil
							}
						}
						results <- err
					}()
				}
				if calls > 10 {
					require.NoError(t, r.claim(next, resource))
				}
				for range hands {
					err := <-results
					require.Equal(t, calls > 10, err != nil, "%v", err)
					if err != nil {
						require.ErrorIs(t, err, fence.ErrStale)
					}
				}
			}
		}
	})
}
