package telemetry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

// A new reason needs a value here too.
func TestReason_hasAValueForEach(t *testing.T) {
	seen := map[string]bool{}
	for r := lease.ReasonDeadlinePassed; !strings.HasPrefix(r.String(), "Reason("); r++ {
		value := telemetry.Reason(r)
		require.NotEqual(t, "other", value, "%v", r)
		require.False(t, seen[value], "%v: another reason has the value %s", r, value)
		seen[value] = true
	}
	require.Equal(t, "other", telemetry.Reason(0))
}

// A waiter that gives up returns the cause of its context, whatever error that is.
func TestOutcome_ofAWaiterThatGivesUp(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, lease.ErrLocked} {
		require.Equal(t, "canceled", telemetry.Outcome(lease.Acquisition{}, err), "%v", err)
	}
	require.Equal(t, "locked", telemetry.Outcome(lease.Acquisition{Try: true}, lease.ErrLocked))
}

// An error of a release is a loss if the hold was lost before the release, and none if it ended during the release.
func TestFoundLost(t *testing.T) {
	for reason, want := range map[lease.Reason]bool{
		lease.ReasonKeyDeleted: true, lease.ReasonLeaseGone: true, lease.ReasonDeadlinePassed: false, lease.ReasonSessionClosed: false,
	} {
		err := fmt.Errorf("wrapped: %w", &lease.LostError{Reason: reason})
		require.Equal(t, want, telemetry.FoundLost(err) != nil, "%v", reason)
	}
	require.Nil(t, telemetry.FoundLost(nil))
	require.Nil(t, telemetry.FoundLost(context.Canceled))
}

func TestElections(t *testing.T) {
	e := telemetry.Elections{}
	require.Zero(t, e.Add("x", 0))
	require.Empty(t, e.Slow(lease.Renewal{Attempts: 2}), "it is a candidate")
	require.Equal(t, 1, e.Add("x", 1))
	require.Equal(t, 1, e.Add("x", 1), "the end of the first leadership is reported after this")
	require.Equal(t, 1, e.Add("x", -1))
	require.Equal(t, []string{"x"}, e.Slow(lease.Renewal{Attempts: 2}))
	require.Empty(t, e.Slow(lease.Renewal{Attempts: 1}))
	require.Zero(t, e.Add("x", -1))
}

func TestCleanUps(t *testing.T) {
	c := telemetry.CleanUps{}
	require.Equal(t, 5, c.Set(1, 5))
	require.Equal(t, 9, c.Set(2, 4))
	require.Equal(t, 7, c.Set(1, 3))
	require.Equal(t, 4, c.Set(1, 0))
	require.Len(t, c, 1, "leases come and go")
}
