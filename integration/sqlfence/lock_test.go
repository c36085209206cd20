package sqlfence_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
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
		want := &fence.OtherLockError{Token: newer, Lock: "report", Follows: "accounts"}
		fencetest.RequireRefusal(t, want, arrived, resource, "the claim")
		require.Equal(t, "accounts", r.marks(t, resource).Lock)
		require.NoError(t, r.increment(of(t, "accounts", older), how, nowhere), "the refused claim has no effect")
		require.EqualValues(t, 2, r.row(t).n)
		return
	}
	require.NoError(t, arrived)
	if !how.checks() || !transient(err) {
		want := &fence.OtherLockError{Token: older, Lock: "accounts", Follows: "report"}
		fencetest.RequireRefusal(t, want, err, resource, "the transaction")
	}
	require.Zero(t, r.row(t).n)
}
