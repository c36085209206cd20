package audit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Each token has its own holder, also where locks are nested.
func TestFromContext(t *testing.T) {
	report, accounts := audit.Holder{Name: "host/7"}, audit.Holder{Name: "host/8", TTL: time.Second}
	outer := audit.NewContext(fence.WithLock(fence.NewContext(t.Context(), 41), "report"), report)
	inner := fencetest.Inside(t, audit.NewContext(fence.WithLock(fence.NewContext(t.Context(), 54), "accounts"), accounts), outer)
	for lock, want := range map[string]audit.Holder{"report": report, "accounts": accounts, "other": {}} {
		require.Equal(t, want, audit.FromContext(fence.ForLock(inner, lock)))
	}
	require.Equal(t, accounts, audit.FromContext(inner))
	require.Zero(t, audit.FromContext(fence.NewContext(inner, 60)), "a token without a holder")
	require.Zero(t, audit.FromContext(audit.NewContext(t.Context(), report)), "no token")
}

type revoked struct{ error }

func (revoked) ReleaseCause() audit.Cause { return audit.CauseRevoked }

func TestCauseOf(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	require.Equal(t, audit.CauseExplicit, audit.CauseOf(ctx))
	cancel(fmt.Errorf("work: %w", revoked{errors.New("an operator did it")}))
	require.Equal(t, audit.CauseRevoked, audit.CauseOf(ctx))

	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(errors.New("done"))
	require.Equal(t, audit.CauseExplicit, audit.CauseOf(ctx))
}
