package telemetry_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// A waiter that gives up returns the cause of its context, whatever error that is: the loss of another lock, say.
func TestOutcome_ofAWaiterThatGivesUp(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, lease.ErrLocked, &lease.LostError{}, lease.ErrClosed, io.EOF} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(err)
		require.Equal(t, "canceled", telemetry.Outcome(ctx, lease.Acquisition{}, err), "%v", err)
	}
	require.Equal(t, "locked", telemetry.Outcome(t.Context(), lease.Acquisition{Try: true}, lease.ErrLocked))
	require.Equal(t, "canceled", telemetry.Outcome(t.Context(), lease.Acquisition{Try: true}, context.Canceled))
}

// recorded returns hooks, and the value of a metric: the sum of its values, or the last one of a gauge. It is NaN before
// the first one.
func recorded() (*lease.Hooks, func(m telemetry.Metric, of ...string) float64) {
	type series struct {
		metric telemetry.Metric
		of     telemetry.Values
	}
	values := map[series]float64{}
	hooks := telemetry.Hooks(func(_ context.Context, m telemetry.Metric, value float64, of telemetry.Values) {
		if telemetry.Definitions[m].Type == telemetry.Gauge {
			value -= values[series{m, of}]
		}
		values[series{m, of}] += value
	}, nil)
	return hooks, func(m telemetry.Metric, of ...string) float64 {
		var all telemetry.Values
		copy(all[:], of)
		if value, ok := values[series{m, all}]; ok {
			return value
		}
		return math.NaN()
	}
}

// An acquisition waits while it is queued, unless it only tries, counts by its outcome, and then holds until it is
// released or lost.
func TestHooks_countAcquisitionsAndHolds(t *testing.T) {
	h, value := recorded()
	lock := lease.Acquisition{Kind: lease.KindLock}
	try := lease.Acquisition{Kind: lease.KindLock, Try: true}
	h.Queued(t.Context(), lock, "")
	h.AcquireEnd(t.Context(), lock, lease.Acquired{Queued: true, Waited: 3 * time.Second})
	h.AcquireEnd(t.Context(), try, lease.Acquired{Queued: true, Err: lease.ErrLocked})
	h.Released(t.Context(), lease.Hold{Acquisition: lock, Held: 4 * time.Second}, nil)
	h.AcquireEnd(t.Context(), lock, lease.Acquired{})
	h.Lost(t.Context(), lease.Hold{Acquisition: lock, Held: time.Second}, &lease.LostError{Reason: lease.ReasonKeyDeleted})
	h.Queued(t.Context(), lock, "")
	h.AcquireEnd(t.Context(), lock, lease.Acquired{})
	require.Equal(t, []float64{1, 3, 1, 3, 1, 5, 1}, []float64{
		value(telemetry.Waiting, "lock"), value(telemetry.Acquisitions, "lock", "granted"), value(telemetry.Acquisitions, "lock", "locked"),
		value(telemetry.Waited, "lock"), value(telemetry.Locks, "lock"), value(telemetry.Held, "lock"),
		value(telemetry.Losses, "lock", "key_deleted"),
	})
}

// An error of a release is a loss if the hold was lost before the release, and none if it ended during the release, or if
// the release was given up because another lock was lost.
func TestHooks_lossFoundByARelease(t *testing.T) {
	for reason, want := range map[lease.Reason]bool{
		lease.ReasonKeyDeleted: true, lease.ReasonLeaseGone: true, lease.ReasonDeadlinePassed: false, lease.ReasonSessionClosed: false,
	} {
		h, value := recorded()
		lost := &lease.LostError{Reason: reason}
		h.Released(t.Context(), lease.Hold{}, fmt.Errorf("given up: %w", lost))
		require.NotEqual(t, 1.0, value(telemetry.Losses, telemetry.Kind(0), telemetry.Reason(reason)), "%v", reason)
		h.Released(t.Context(), lease.Hold{}, lost)
		require.Equal(t, want, value(telemetry.Losses, telemetry.Kind(0), telemetry.Reason(reason)) == 1, "%v", reason)
	}
}

// A candidate that does not lead is recorded with 0. The next leadership may be won before the end of the last is
// reported.
func TestHooks_leadershipsOverlap(t *testing.T) {
	h, value := recorded()
	hold := lease.Hold{Acquisition: lease.Acquisition{Kind: lease.KindLeadership, Names: []string{"x"}}}
	requireElection := func(leads, slow float64) {
		t.Helper()
		h.Renewed(lease.Renewal{Attempts: 1})
		h.Renewed(lease.Renewal{Attempts: 2})
		require.Equal(t, []float64{leads, slow}, []float64{value(telemetry.Leads, "x"), value(telemetry.Slow, "x")})
	}
	h.AcquireStart(t.Context(), hold.Acquisition)
	requireElection(0, 0)
	h.AcquireEnd(t.Context(), hold.Acquisition, hold.Acquired)
	requireElection(1, 1)
	h.AcquireEnd(t.Context(), hold.Acquisition, hold.Acquired)
	requireElection(1, 2)
	h.Lost(t.Context(), hold, &lease.LostError{})
	requireElection(1, 3)
	h.Released(t.Context(), hold, nil)
	requireElection(0, 3)
}

func TestHooks_onlyThePresentStateIs1(t *testing.T) {
	h, value := recorded()
	h.StateChanged(lease.Status{State: lease.StateHeld})
	h.StateChanged(lease.Status{State: lease.StateLost})
	require.Equal(t, []float64{0, 0, 1}, []float64{value(telemetry.State, "held"), value(telemetry.State, "jeopardy"), value(telemetry.State, "lost")})
}

// A lost lease may have keys to delete beside those of the next lease.
func TestHooks_cleanUpsOfTwoLeases(t *testing.T) {
	h, value := recorded()
	for _, step := range []struct {
		lease clientv3.LeaseID
		keys  int
		sum   float64
	}{{1, 5, 5}, {2, 4, 9}, {1, 3, 7}, {1, 0, 4}} {
		h.CleanUp(step.lease, step.keys)
		require.InDelta(t, step.sum, value(telemetry.CleanUp), 0)
	}
}
