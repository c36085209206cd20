// Package telemetry has what the packages leaseprom and leaseotel have in common: the metrics, the hooks that record
// them, and the values of their labels or attributes. It depends on neither Prometheus nor OpenTelemetry.
package telemetry

import (
	"context"
	"errors"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// Value returns a text as the value of a label or attribute. Names of resources are any bytes, but Prometheus panics on a
// label that is not UTF-8, and OTLP cannot carry such an attribute.
func Value(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

// Kind returns the value of the label kind.
func Kind(k lease.Kind) string { return strings.ReplaceAll(k.String(), " ", "_") }

// Outcome returns the value of the label outcome for the end of an acquisition with the context ctx, whose cause may be
// any error: the loss of another lock, say.
func Outcome(ctx context.Context, a lease.Acquisition, err error) string {
	switch {
	case err == nil:
		return "granted"
	case a.Try && errors.Is(err, lease.ErrLocked):
		return "locked"
	case errors.Is(err, context.Cause(ctx)):
		return "canceled"
	case errors.Is(err, lease.ErrClosed):
		return "closed"
	case errors.Is(err, lease.ErrLost):
		return "lost"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // of a release
		return "canceled"
	default:
		return "error"
	}
}

var reasons = map[lease.Reason]string{
	lease.ReasonDeadlinePassed:   "deadline_passed",
	lease.ReasonLeaseGone:        "lease_gone",
	lease.ReasonKeyDeleted:       "key_deleted",
	lease.ReasonKeyOverwritten:   "key_overwritten",
	lease.ReasonSessionClosed:    "session_closed",
	lease.ReasonRevisionWentBack: "revision_went_back",
}

// Reason returns the value of the label reason for a loss.
func Reason(r lease.Reason) string {
	if name, ok := reasons[r]; ok {
		return name
	}
	return "other"
}

// foundLost returns the loss that a release has found, or nil. Err is the error of the release. A loss that it wraps is
// that of another lock, whose context the caller of Unlock used, or it came during the release: the lock was held until
// the release began. So it was if the deadline passed or the session was closed.
func foundLost(err error) *lease.LostError {
	lost, ok := err.(*lease.LostError) //nolint:errorlint // not wrapped
	if !ok || lost.Reason == lease.ReasonDeadlinePassed || lost.Reason == lease.ReasonSessionClosed {
		return nil
	}
	return lost
}

// Access returns the values of the labels mode and outcome for a token that a resource has refused with err, or
// accepted if err is nil.
func Access(a fence.Access, err error) (mode, outcome string) {
	mode, outcome = "write", "accepted"
	if a.Read {
		mode = "read"
	}
	switch {
	case errors.Is(err, fence.ErrOtherLock):
		outcome = "other_lock"
	case err != nil:
		outcome = "stale"
	}
	return mode, outcome
}
