package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/storetest"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// of returns the context of a lock's holder, and readerOf that of a reader.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(as(t, token), lock)
}

func readerOf(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(asReader(t, token), lock)
}

// requireOther requires the refusal of a token because of its lock.
func requireOther(t *testing.T, err error, reads bool, lock string, token fence.Token, follows string) {
	t.Helper()
	require.ErrorIs(t, err, fence.ErrOtherLock)
	require.NotErrorIs(t, err, fence.ErrStale)
	other, ok := errors.AsType[*fence.OtherLockError](err)
	require.True(t, ok)
	require.Equal(t, fence.OtherLockError{Resource: resource, Token: token, Read: reads, Lock: lock, Follows: follows}, *other)
}

// The claim of another lock comes at every step of a transaction. The resource follows the transaction's lock, or no
// lock yet.
func TestMarks_otherLockComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		everyStep(func(how form, when step) {
			for _, named := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, named %t, %s", how, named, when), func(t *testing.T) { r.otherComes(t, how, named, when) })
			}
		})
	})
}

func (r *rig) otherComes(t *testing.T, how form, named bool, when step) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	if named {
		require.NoError(t, r.claim(of(t, "accounts", older), resource))
	}
	come := func() error { return r.claim(of(t, "report", newer), resource) }
	// The claim may be refused by its look at the marks, without waiting.
	err, arrived := r.meets(t, r.incrementOf(of(t, "accounts", older), how), when, mayPass, come)
	if named || !when.before() {
		require.NoError(t, err)
		requireOther(t, arrived, false, "report", newer, "accounts")
		require.Equal(t, "accounts", r.marks(t, resource).Lock)
		require.NoError(t, r.increment(of(t, "accounts", older), how, nowhere), "the refused claim has no effect")
		require.EqualValues(t, 2, r.row(t).n)
		return
	}
	require.NoError(t, arrived)
	if !how.checks() || !transient(err) {
		requireOther(t, err, false, "accounts", older, "report")
	}
	require.Zero(t, r.row(t).n)
}

// A move comes at every step of a transaction under the lock that the resource has followed. It waits for the
// transaction, and later ones are refused. The tokens of the two locks may be equal, since they have no common order.
func TestMarks_moveComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		everyStep(func(how form, when step) {
			for _, token := range []fence.Token{older, newer} {
				t.Run(fmt.Sprintf("%s, to %d, %s", how, token, when), func(t *testing.T) { r.moveComes(t, how, token, when) })
			}
		})
	})
}

func (r *rig) moveComes(t *testing.T, how form, token fence.Token, when step) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(of(t, "accounts", older), resource))
	move := func() error { return r.move(of(t, "ledger", token), resource) }
	err, moved := r.meets(t, r.incrementOf(of(t, "accounts", older), how), when, waits, move)
	require.NoError(t, moved)
	accepted := int64(0)
	switch {
	case !when.before():
		require.NoError(t, err)
		accepted = 1
	case !how.checks() || !transient(err):
		requireOther(t, err, false, "accounts", older, "ledger")
	}
	requireOther(t, r.increment(of(t, "accounts", newer+1), do, nowhere), false, "accounts", newer+1, "ledger")
	n, err := r.incrementOn(of(t, "ledger", token), resource, how, nowhere)
	require.NoError(t, err)
	require.Equal(t, accepted, n, "what the new lock's holder has read")
}

// A claim gives up while it waits. Its announcement does not refuse the holders of another lock, which the resource
// follows later.
func TestMarks_otherLocksClaimGivenUp(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		if r.kind == storetest.SQLite {
			return // it does not show waiters
		}
		for _, reads := range []bool{false, true} {
			r.reset(t)
			require.NoError(t, r.claim(as(t, older), resource))
			require.NoError(t, r.increment(as(t, older), doShared, func(at step) {
				if at != hasWritten {
					return
				}
				if reads {
					r.giveUp(t, readerOf(t, "report", newer), r.claimRead)
				} else {
					r.giveUp(t, of(t, "report", newer), r.claim)
				}
			}))
			require.NoError(t, r.claim(of(t, "accounts", older+1), resource))
			for _, how := range forms {
				require.NoError(t, r.increment(of(t, "accounts", older+1), how, nowhere))
			}
			require.NoError(t, r.claimRead(readerOf(t, "accounts", older+2), resource))
			require.NoError(t, r.checked(readerOf(t, "accounts", older+2), nowhere, func(conn) error { return nil }))
			require.Equal(t, fencetest.Marks{Write: older + 1, Read: older + 2, Lock: "accounts"}, r.marks(t, resource))
		}
	})
}
