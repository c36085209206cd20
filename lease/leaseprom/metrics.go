// Package leaseprom has Prometheus metrics of the sessions of package lease, and of the elections on them.
//
//	metrics, err := leaseprom.New(leaseprom.Options{})
//	if err != nil {
//		return err
//	}
//	prometheus.MustRegister(metrics)
//	session, err := lease.NewSession(ctx, client, lease.Options{Hooks: metrics.Hooks()})
//
// # Metrics
//
//	leasefence_acquisitions_total{kind, outcome}       calls that have ended: granted, locked, canceled, lost, closed, error
//	leasefence_acquisitions_waiting{kind}              calls that wait now
//	leasefence_acquisition_duration_seconds{kind}      time to the grant, of calls that were granted
//	leasefence_locks_held{kind}                        locks that are held now
//	leasefence_lock_held_seconds{kind}                 time held, of holds that have ended
//	leasefence_losses_total{kind, reason}              holds that were lost: deadline_passed, lease_gone, key_deleted,
//	                                                   key_overwritten, session_closed, revision_went_back
//	leasefence_renewal_duration_seconds                round trips of the renewals
//	leasefence_renewal_attempts_total                  attempts of the renewals, retries included
//	leasefence_renewal_left_seconds                    time until the deadline when the last renewal was acknowledged
//	leasefence_session_state{state}                    1 for the present state of held, jeopardy and lost, 0 for the others
//	leasefence_cleanup_keys                            keys that are to be deleted in the background
//	leader_election_master_status{name}                1 while this process leads, 0 while it does not
//	leader_election_slowpath_total{name}               renewals that took more than one attempt while it led
//	leasefence_tokens_total{mode, outcome}             tokens of writes and reads at resources: accepted, stale, other_lock
//
// The kinds are those of [lease.Kind], with "_" for a space. With [Options].Lock the metrics with a kind have a label
// lock too. The two metrics of elections have the names and the meaning that they have in client-go. The last metric is
// counted by [Resources], where the tokens are checked. dashboard.json is a dashboard for Grafana, alerts.yaml has
// rules for Prometheus. Package leaseotel has the same metrics for OpenTelemetry.
package leaseprom

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

// Options are the settings of [New]. The zero value of a field is its default.
type Options struct {
	// Lock returns the value of the label lock for an acquisition, for example the part of a name before its first
	// slash. Each value is another time series for as long as the process lives, so there should be few. Default: no
	// label lock.
	Lock func(lease.Acquisition) string

	// Buckets are the upper bounds of the histograms, in seconds, ascending. Default: 1 ms to 16 s for acquisitions and
	// renewals, and 10 ms to 3 h for holds, each bound four times the one before.
	Buckets []float64
}

// Metrics are a [prometheus.Collector] for one session. Tell the metrics of several sessions apart by labels; see
// [prometheus.WrapRegistererWith].
type Metrics struct {
	lock func(lease.Acquisition) string
	all  []prometheus.Collector

	acquisitions, losses *prometheus.CounterVec
	waiting, locks       *prometheus.GaugeVec
	waited, held         *prometheus.HistogramVec
	roundTrip            prometheus.Observer
	attempts             prometheus.Counter
	left                 prometheus.Gauge
	state, leads         *prometheus.GaugeVec
	slow                 *prometheus.CounterVec
	cleanUp              prometheus.Gauge

	mu       sync.Mutex // guards the fields below
	leading  telemetry.Elections
	cleanUps telemetry.CleanUps
}

// New returns the metrics. It returns an error if the buckets are not ascending.
func New(opts Options) (*Metrics, error) {
	if !slices.IsSorted(opts.Buckets) || len(slices.Compact(slices.Clone(opts.Buckets))) != len(opts.Buckets) {
		return nil, fmt.Errorf("leaseprom: Options.Buckets is %v, want bounds that ascend", opts.Buckets)
	}
	short, long := opts.Buckets, opts.Buckets
	if len(opts.Buckets) == 0 {
		short, long = prometheus.ExponentialBuckets(0.001, 4, 8), prometheus.ExponentialBuckets(0.01, 4, 11)
	}
	m := &Metrics{lock: opts.Lock, leading: telemetry.Elections{}, cleanUps: telemetry.CleanUps{}}
	labels := func(own ...string) []string {
		if m.lock != nil {
			own = append(own, "lock")
		}
		return own
	}
	opt := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "leasefence", Name: name, Help: help}
	}
	counter := func(o prometheus.Opts, labels ...string) *prometheus.CounterVec {
		return add(m, prometheus.NewCounterVec(prometheus.CounterOpts(o), labels))
	}
	gauge := func(o prometheus.Opts, labels ...string) *prometheus.GaugeVec {
		return add(m, prometheus.NewGaugeVec(prometheus.GaugeOpts(o), labels))
	}
	histogram := func(o prometheus.Opts, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return add(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: o.Namespace, Name: o.Name, Help: o.Help, Buckets: buckets,
		}, labels))
	}
	m.acquisitions = counter(opt("acquisitions_total", "Acquisitions that have ended."), labels("kind", "outcome")...)
	m.waiting = gauge(opt("acquisitions_waiting", "Acquisitions that wait now."), labels("kind")...)
	m.waited = histogram(opt("acquisition_duration_seconds", "Time to the grant of acquisitions."), short, labels("kind")...)
	m.locks = gauge(opt("locks_held", "Locks that are held now."), labels("kind")...)
	m.held = histogram(opt("lock_held_seconds", "Time for which locks were held."), long, labels("kind")...)
	m.losses = counter(opt("losses_total", "Locks that were lost."), labels("kind", "reason")...)
	m.roundTrip = histogram(opt("renewal_duration_seconds", "Round trips of the lease's renewals."), short).WithLabelValues()
	m.attempts = counter(opt("renewal_attempts_total", "Attempts to renew the lease.")).WithLabelValues()
	m.left = gauge(opt("renewal_left_seconds", "Time until the deadline when the last renewal came.")).WithLabelValues()
	m.state = gauge(opt("session_state", "1 for the state of the session's lease, 0 for the others."), "state")
	m.cleanUp = gauge(opt("cleanup_keys", "Keys that are to be deleted in the background.")).WithLabelValues()
	m.leads = gauge(prometheus.Opts{
		Name: "leader_election_master_status", Help: "1 while this process leads the election, 0 while it does not.",
	}, "name")
	m.slow = counter(prometheus.Opts{
		Name: "leader_election_slowpath_total", Help: "Renewals that took more than one attempt while this process led.",
	}, "name")
	return m, nil
}

// add adds a collector to m.
func add[T prometheus.Collector](m *Metrics, c T) T {
	m.all = append(m.all, c)
	return c
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// labels are the values of the labels of an acquisition, own after the kind.
func (m *Metrics) labels(a lease.Acquisition, own ...string) []string {
	all := append([]string{telemetry.Kind(a.Kind)}, own...)
	if m.lock != nil {
		all = append(all, m.lock(a))
	}
	return all
}

// Hooks returns the hooks for [lease.Options]. To add other hooks, use [lease.JoinHooks].
func (m *Metrics) Hooks() *lease.Hooks {
	return &lease.Hooks{
		AcquireStart: func(ctx context.Context, a lease.Acquisition) context.Context {
			if a.Kind == lease.KindLeadership {
				m.lead(a.Names[0], 0)
			}
			return ctx
		},
		Queued: func(_ context.Context, a lease.Acquisition, _ string) {
			m.waiting.WithLabelValues(m.labels(a)...).Inc()
		},
		AcquireEnd:   m.acquired,
		Released:     func(_ context.Context, h lease.Hold, err error) { m.ended(h, telemetry.FoundLost(err)) },
		Lost:         func(_ context.Context, h lease.Hold, err *lease.LostError) { m.ended(h, err) },
		Renewed:      m.renewed,
		StateChanged: m.stateChanged,
		CleanUp:      m.cleanUpOf,
	}
}

func (m *Metrics) acquired(_ context.Context, a lease.Acquisition, r lease.Acquired) {
	labels := m.labels(a)
	if r.Queued && !a.Try {
		m.waiting.WithLabelValues(labels...).Dec()
	}
	m.acquisitions.WithLabelValues(m.labels(a, telemetry.Outcome(a, r.Err))...).Inc()
	if r.Err != nil {
		return
	}
	m.waited.WithLabelValues(labels...).Observe(r.Waited.Seconds())
	m.locks.WithLabelValues(labels...).Inc()
	if a.Kind == lease.KindLeadership {
		m.lead(a.Names[0], 1)
	}
}

func (m *Metrics) ended(h lease.Hold, lost *lease.LostError) {
	if lost != nil {
		m.losses.WithLabelValues(m.labels(h.Acquisition, telemetry.Reason(lost.Reason))...).Inc()
	}
	labels := m.labels(h.Acquisition)
	m.locks.WithLabelValues(labels...).Dec()
	m.held.WithLabelValues(labels...).Observe(h.Held.Seconds())
	if h.Kind == lease.KindLeadership {
		m.lead(h.Names[0], -1)
	}
}

func (m *Metrics) lead(name string, change int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads.WithLabelValues(name).Set(float64(m.leading.Add(name, change)))
	m.slow.WithLabelValues(name)
}

func (m *Metrics) renewed(r lease.Renewal) {
	m.roundTrip.Observe(r.RoundTrip.Seconds())
	m.attempts.Add(float64(r.Attempts))
	m.left.Set(r.Left.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range m.leading.Slow(r) {
		m.slow.WithLabelValues(name).Inc()
	}
}

func (m *Metrics) stateChanged(s lease.Status) {
	for state, value := range telemetry.States(s.State) {
		m.state.WithLabelValues(state).Set(float64(value))
	}
}

func (m *Metrics) cleanUpOf(id clientv3.LeaseID, keys int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cleanUp.Set(float64(m.cleanUps.Set(id, keys)))
}
