package sqlfence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Histories of a read/write lock: nothing stale is accepted, and nobody who holds the lock is refused.
func TestMarks_grants(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		calls := 0
		fencetest.Grants(t, fencetest.Verbs{
			Claim:     r.claim,
			ClaimRead: r.claimRead,
			Check: func(ctx context.Context, resource string) error {
				calls++
				return r.afterClaim(ctx, resource, r.claim, func() error {
					return r.runOn(ctx, resource, forms[calls%len(forms)], nowhere, nothing)
				})
			},
			CheckRead: func(ctx context.Context, resource string) error {
				return r.afterClaim(ctx, resource, r.claimRead, func() error {
					return r.transaction(ctx, func(tx conn) error { return r.checkRead(ctx, tx, resource) })
				})
			},
		})
	})
}

// afterClaim is a check that claims where the level makes it necessary.
func (r *rig) afterClaim(ctx context.Context, resource string, claim func(context.Context, string) error, check func() error) error {
	err := check()
	if !errors.Is(err, sqlfence.ErrUnclaimed) {
		return err
	}
	if err := claim(ctx, resource); err != nil {
		return err
	}
	return check()
}
