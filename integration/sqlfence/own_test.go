package sqlfence_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// Two transactions of one holder, of two branches or of readers are inside their guards at once. A newer claim waits
// for both, and refuses later ones: otherwise transactions that overlap would keep it waiting.
func TestMarks_sideBySide(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range []form{doShared, checkShared, checkPath, checkRead} {
			for _, newerReads := range []bool{true, false} {
				switch {
				case r.dialect == sqlfence.SQLite && how != checkRead: // one writer at a time
				case newerReads && !how.shared(): // it conflicts with neither
				default:
					name := fmt.Sprintf("%s, newer reader %t", how, newerReads)
					t.Run(name, func(t *testing.T) { r.sideBySide(t, how, newerReads) })
				}
			}
		}
	})
}

func (r *rig) sideBySide(t *testing.T, how form, newerReads bool) {
	t.Helper()
	r.reset(t)
	nodes, tokens, tenure, claim := [2]string{resource, resource}, [2]fence.Token{older, older}, as, r.claimPath
	switch how {
	case checkPath:
		nodes = [2]string{resource + "/b", resource + "/c"}
	case checkRead:
		tokens, tenure, claim = [2]fence.Token{older + 1, older}, asReader, r.claimRead
	}
	// Otherwise the two would claim, and a claim waits for transactions with a lock on the mark.
	for i, node := range nodes {
		require.NoError(t, claim(tenure(t, tokens[i]), node))
	}
	run := func(i int, body func(context.Context, conn) error) error {
		return r.run(tenure(t, tokens[i]), nodes[i], how, body)
	}
	claimed, third := make(chan error, 1), make(chan error, 1)
	newerClaims := func() {
		if newerReads {
			claimed <- r.claimRead(asReader(t, newer), resource)
		} else {
			claimed <- r.claimPath(as(t, newer), resource)
		}
	}
	both := func(context.Context, conn) error {
		if how != checkPath {
			require.NoError(t, claim(tenure(t, tokens[0]), resource), "their own claim does not wait for them")
		}
		if how == checkRead && r.dialect != sqlfence.MySQL && r.journal != "delete" {
			require.NoError(t, r.claimRead(asReader(t, older+2), resource), "nor does a newer reader's")
		}
		if r.journal == "wal" {
			newerClaims() // they have their snapshots
		} else {
			go newerClaims()
		}
		r.awaitWaiter(t)
		go func() { third <- run(0, nothing) }()
		if r.dialect == sqlfence.PostgreSQL && how != checkPath {
			// On MariaDB it queues behind the claim, and a path's guard queues behind the first of its node.
			require.ErrorIs(t, <-third, fence.ErrStale, "a later transaction passes the claim")
			third <- fence.ErrStale
		}
		return nil
	}
	require.NoError(t, run(1, func(context.Context, conn) error {
		require.NoError(t, run(0, both), "one waits for the other")
		if r.dialect != sqlfence.SQLite {
			r.awaitWaiter(t)
			require.Empty(t, claimed, "the claim has not waited for the second")
		}
		return nil
	}))
	require.NoError(t, <-claimed)
	err := <-third
	if r.journal != "delete" && (!how.checks() || !transient(err)) { // there it may have come before the claim
		require.ErrorIs(t, err, fence.ErrStale)
	}
	require.ErrorIs(t, run(0, nothing), fence.ErrStale)
}

// Conflicts at the mark do not count as attempts: neither those of one holder's goroutines, nor those of a claim with
// an older holder's transactions. On PostgreSQL at a level with a snapshot, each COMMIT fails the guards that have
// older snapshots.
//
// At Serializable, PostgreSQL may also fail a COMMIT after the guard: a transaction drops its predicate locks shortly
// after the next one has got its row lock, so the two can count as concurrent. That is a serialization failure like any
// other, and an attempt.
func TestDo_meetingAtTheMarkIsNoAttempt(t *testing.T) {
	at(t, slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !p.snapshots() }), func(t *testing.T, r *rig) {
		r.adapter = r.with(t, sqlfence.Options{Attempts: 1, Log: sqlfence.DefaultLog})
		require.NoError(t, r.migrate(t.Context()))
		const hands = 4
		met, results := make(chan struct{}, hands), make(chan error, hands)
		for token := older; token < older+2; token++ {
			require.NoError(t, r.claim(as(t, token), resource))
			ctx := as(t, token)
			for range hands {
				go func() {
					var err error
					for calls := 0; err == nil; calls++ { // until it is refused
						if calls == 10 {
							met <- struct{}{}
						}
						err = r.do(ctx, resource, nothing)
						if err != nil && strings.Contains(err.Error(), "read/write dependencies") {
							err = nil
						}
					}
					results <- err
				}()
			}
			for range hands {
				select {
				case <-met:
				case err := <-results:
					require.NoError(t, err)
				}
			}
			require.NoError(t, r.claim(as(t, token+1), resource))
			for range hands {
				require.ErrorIs(t, <-results, fence.ErrStale)
			}
		}
	})
}
