package telemetry

import "slices"

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
