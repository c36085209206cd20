// Package telemetry has what the packages leaseprom and leaseotel have in common: the metrics, the hooks that record
// them, and the values of their labels or attributes. It depends on neither Prometheus nor OpenTelemetry.
package telemetry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// Metric is one of the metrics, which the packages leaseprom and leaseotel both have.
type Metric int

// The metrics of a session, and after them the one of resources.
const (
	Acquisitions Metric = iota
	Waiting
	Waited
	Locks
	Held
	Losses
	RoundTrip
	Attempts
	Left
	State
	CleanUp
	Leads
	Slow
	Tokens
)

// Type is what a recorded value does to a metric.
type Type int

// The types: a value is added to a counter or a sum, which may go down, is the new value of a gauge, or is one of the
// values of a histogram. The values of Seconds and Histogram are in seconds, the others are integers.
const (
	Counter Type = iota
	Sum
	Gauge
	Seconds
	Histogram
)

// Definition is what a metric is called, and what it has.
type Definition struct {
	Prometheus, OpenTelemetry string // names
	Unit, Help                string
	Type                      Type
	Labels                    []string
	More                      string    // a further label, if the user has given a function for its values
	Bounds                    []float64 // the default of a histogram
}

var (
	kind    = []string{"kind"}
	outcome = []string{"kind", "outcome"}
	reason  = []string{"kind", "reason"}
	name    = []string{"name"}
	state   = []string{"state"}
	access  = []string{"mode", "outcome"}
	short   = bounds(0.001, 8)
	long    = bounds(0.01, 11)
)

// bounds are n bounds of a histogram, each four times the one before.
func bounds(first float64, n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = first
		first *= 4
	}
	return all
}

// Definitions has all metrics.
var Definitions = [...]Definition{
	Acquisitions: {
		"leasefence_acquisitions_total", "leasefence.acquisitions", "{acquisition}", "Acquisitions that have ended.", Counter, outcome, "lock", nil,
	},
	Waiting: {
		"leasefence_acquisitions_waiting", "leasefence.acquisitions_waiting", "{acquisition}", "Acquisitions that wait now.", Sum, kind, "lock", nil,
	},
	Waited: {
		"leasefence_acquisition_duration_seconds", "leasefence.acquisition.duration", "s", "Time to the grant of acquisitions.",
		Histogram, kind, "lock", short,
	},
	Locks:  {"leasefence_locks_held", "leasefence.locks_held", "{lock}", "Locks that are held now.", Sum, kind, "lock", nil},
	Held:   {"leasefence_lock_held_seconds", "leasefence.lock.held", "s", "Time for which locks were held.", Histogram, kind, "lock", long},
	Losses: {"leasefence_losses_total", "leasefence.losses", "{lock}", "Locks that were lost.", Counter, reason, "lock", nil},
	RoundTrip: {
		"leasefence_renewal_duration_seconds", "leasefence.renewal.duration", "s", "Round trips of the lease's renewals.",
		Histogram, nil, "", short,
	},
	Attempts: {
		"leasefence_renewal_attempts_total", "leasefence.renewal.attempts", "{attempt}", "Attempts to renew the lease.", Counter, nil, "", nil,
	},
	Left: {
		"leasefence_renewal_left_seconds", "leasefence.renewal.left", "s", "Time until the deadline when the last renewal came.",
		Seconds, nil, "", nil,
	},
	State: {
		"leasefence_session_state", "leasefence.session.state", "", "1 for the state of the session's lease, 0 for the others.",
		Gauge, state, "", nil,
	},
	CleanUp: {
		"leasefence_cleanup_keys", "leasefence.cleanup.keys", "{key}", "Keys that are to be deleted in the background.", Gauge, nil, "", nil,
	},
	Leads: {
		"leader_election_master_status", "leader_election_master_status", "", "1 while this process leads the election, 0 while it does not.",
		Gauge, name, "", nil,
	},
	Slow: {
		"leader_election_slowpath_total", "leader_election_slowpath_total", "{renewal}",
		"Renewals that took more than one attempt while this process led.", Counter, name, "", nil,
	},
	Tokens: {
		"leasefence_tokens_total", "leasefence.tokens", "{token}", "Tokens that have come to resources.",
		Counter, access, "resource", nil,
	},
}

// LabelsWith returns the names of the labels; more says whether the user has given a function for one more.
func (d *Definition) LabelsWith(more bool) []string {
	if !more || d.More == "" {
		return d.Labels
	}
	return append(slices.Clip(d.Labels), d.More)
}

// Values are the values of a metric's labels, in their order. The last ones may be unused.
type Values [3]string

// Record records a value of a metric. It is called by several goroutines.
type Record func(ctx context.Context, m Metric, value float64, of Values)

// session turns the events of a session into values.
type session struct {
	record Record
	lock   func(lease.Acquisition) string // nil: no label lock

	mu sync.Mutex // guards the fields below
	// leading counts the leaderships of this process by election. A count may be 2 for a moment: the next leadership may
	// be won before the end of the last is reported.
	leading map[string]int
	// cleanUps counts the keys that are to be deleted by their lease. A lost lease may still have some.
	cleanUps map[clientv3.LeaseID]int
}

// Hooks returns hooks for one session that record its metrics. Lock returns the value of the label lock, unless it is
// nil.
func Hooks(record Record, lock func(lease.Acquisition) string) *lease.Hooks {
	s := &session{record: record, lock: lock, leading: map[string]int{}, cleanUps: map[clientv3.LeaseID]int{}}
	return &lease.Hooks{
		AcquireStart: func(ctx context.Context, a lease.Acquisition) context.Context {
			s.lead(ctx, a, 0)
			return ctx
		},
		Queued:       func(ctx context.Context, a lease.Acquisition, _ string) { s.of(ctx, a, Waiting, 1, "") },
		AcquireEnd:   s.acquired,
		Released:     func(ctx context.Context, h lease.Hold, err error) { s.ended(ctx, h, foundLost(err)) },
		Lost:         s.ended,
		Renewed:      s.renewed,
		StateChanged: s.stateChanged,
		CleanUp:      s.cleanUp,
	}
}

// of records a value of a metric with a kind. More is the value of the label after that, or "".
func (s *session) of(ctx context.Context, a lease.Acquisition, m Metric, value float64, more string) {
	of := Values{Kind(a.Kind), more}
	if s.lock != nil {
		of[len(Definitions[m].Labels)] = Value(s.lock(a))
	}
	s.record(ctx, m, value, of)
}

func (s *session) acquired(ctx context.Context, a lease.Acquisition, r lease.Acquired) {
	if r.Queued && !a.Try {
		s.of(ctx, a, Waiting, -1, "")
	}
	s.of(ctx, a, Acquisitions, 1, Outcome(ctx, a, r.Err))
	if r.Err != nil {
		return
	}
	s.of(ctx, a, Waited, r.Waited.Seconds(), "")
	s.of(ctx, a, Locks, 1, "")
	s.lead(ctx, a, 1)
}

func (s *session) ended(ctx context.Context, h lease.Hold, lost *lease.LostError) {
	if lost != nil {
		s.of(ctx, h.Acquisition, Losses, 1, Reason(lost.Reason))
	}
	s.of(ctx, h.Acquisition, Locks, -1, "")
	s.of(ctx, h.Acquisition, Held, h.Held.Seconds(), "")
	s.lead(ctx, h.Acquisition, -1)
}

// lead records whether the process leads an election, after a change of its leaderships.
func (s *session) lead(ctx context.Context, a lease.Acquisition, change int) {
	if a.Kind != lease.KindLeadership {
		return
	}
	name := a.Names[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading[name] += change
	s.record(ctx, Leads, float64(min(s.leading[name], 1)), Values{name})
	s.record(ctx, Slow, 0, Values{name})
}

func (s *session) renewed(r lease.Renewal) {
	ctx := context.Background()
	s.record(ctx, RoundTrip, r.RoundTrip.Seconds(), Values{})
	s.record(ctx, Attempts, float64(r.Attempts), Values{})
	s.record(ctx, Left, r.Left.Seconds(), Values{})
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.leading {
		if n > 0 && r.Attempts > 1 {
			s.record(ctx, Slow, 1, Values{name})
		}
	}
}

func (s *session) stateChanged(now lease.Status) {
	for _, state := range []lease.State{lease.StateHeld, lease.StateJeopardy, lease.StateLost} {
		value := 0.0
		if state == now.State {
			value = 1
		}
		s.record(context.Background(), State, value, Values{state.String()})
	}
}

func (s *session) cleanUp(id clientv3.LeaseID, keys int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanUps[id] = keys
	if keys == 0 {
		delete(s.cleanUps, id)
	}
	sum := 0
	for _, n := range s.cleanUps {
		sum += n
	}
	s.record(context.Background(), CleanUp, float64(sum), Values{})
}

// FenceHooks returns hooks for resources that record the tokens. Resource returns the value of the label resource,
// unless it is nil.
func FenceHooks(record Record, resource func(fence.Access) string) *fence.Hooks {
	count := func(ctx context.Context, a fence.Access, err error) {
		mode, outcome := Access(a, err)
		of := Values{mode, outcome}
		if resource != nil {
			of[2] = Value(resource(a))
		}
		record(ctx, Tokens, 1, of)
	}
	return &fence.Hooks{
		Accepted: func(ctx context.Context, a fence.Access) { count(ctx, a, nil) },
		Refused:  count,
	}
}

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
