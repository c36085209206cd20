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
	"github.com/leasefence/leasefence/internal/scope"
)

func TestFromContext(t *testing.T) {
	h := audit.Holder{Name: "host/7", TTL: 10 * time.Second}
	ctx := audit.NewContext(fence.NewContext(t.Context(), 41), h)
	require.Equal(t, h, audit.FromContext(ctx))

	other := fence.NewContext(ctx, 54)
	require.Zero(t, audit.FromContext(other), "a token without a holder")
	require.Zero(t, audit.FromContext(fence.NewContext(ctx, 0)), "no token")
	require.Zero(t, audit.FromContext(t.Context()))
	require.Zero(t, audit.FromContext(audit.NewContext(t.Context(), h)), "no token")
}

// Where locks are nested, each token has its own holder.
func TestFromContext_ofAnOuterLock(t *testing.T) {
	report, accounts := audit.Holder{Name: "host/7"}, audit.Holder{Name: "host/8", TTL: time.Second}
	outer := audit.NewContext(fence.WithLock(fence.NewContext(t.Context(), 41), "report"), report)
	inner, done := scope.Work(audit.NewContext(fence.WithLock(fence.NewContext(t.Context(), 54), "accounts"), accounts), outer)
	defer done()
	require.Equal(t, accounts, audit.FromContext(inner))
	require.Equal(t, accounts, audit.FromContext(fence.ForLock(inner, "accounts")))
	require.Equal(t, report, audit.FromContext(fence.ForLock(inner, "report")))
	require.Zero(t, audit.FromContext(fence.ForLock(inner, "other")))
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
