// Package telemetry is shared by the packages leaseprom and leaseotel. It has the values of their labels or attributes,
// and the counts that need more than one call of a hook. It depends on neither Prometheus nor OpenTelemetry.
package telemetry

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// Kind returns the value of the label kind.
func Kind(k lease.Kind) string { return strings.ReplaceAll(k.String(), " ", "_") }

// Outcome returns the value of the label outcome for the end of an acquisition.
func Outcome(a lease.Acquisition, err error) string {
	switch {
	case err == nil:
		return "granted"
	case a.Try && errors.Is(err, lease.ErrLocked):
		return "locked"
	case errors.Is(err, lease.ErrClosed):
		return "closed"
	case errors.Is(err, lease.ErrLost):
		return "lost"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, lease.ErrLocked):
		return "canceled" // ErrLocked too, if it is the cause of the caller's context
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

// FoundLost returns the loss that a release has found, or nil. Err is the error of the release. If the deadline passed or
// the session was closed, that happened during the release: the lock was held until the release began.
func FoundLost(err error) *lease.LostError {
	lost, ok := errors.AsType[*lease.LostError](err)
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

// States returns, by the value of the label state, 1 for the present state and 0 for the others.
func States(is lease.State) map[string]int {
	states := map[string]int{lease.StateHeld.String(): 0, lease.StateJeopardy.String(): 0, lease.StateLost.String(): 0}
	states[is.String()] = 1
	return states
}

// Elections counts the leaderships of a process by name. A count may be 2 for a moment: the next leadership may be won
// before the end of the last is reported.
type Elections map[string]int

// Add returns 1 if the process leads the election after the change, else 0.
func (e Elections) Add(name string, change int) int {
	e[name] += change
	return min(e[name], 1)
}

// Slow returns the elections that the process leads if the renewal took more than one attempt.
func (e Elections) Slow(r lease.Renewal) []string {
	var names []string
	for name, n := range e {
		if n > 0 && r.Attempts > 1 {
			names = append(names, name)
		}
	}
	return names
}

// CleanUps counts the keys that are to be deleted for each lease of a session. A lost lease may still have some.
type CleanUps map[clientv3.LeaseID]int

// Set sets the count of a lease and returns the sum over all leases.
func (c CleanUps) Set(id clientv3.LeaseID, keys int) int {
	c[id] = keys
	if keys == 0 {
		delete(c, id)
	}
	sum := 0
	for _, n := range c {
		sum += n
	}
	return sum
}
