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
// lock too. The two metrics of elections have the names and the meaning that they have in client-go. A registry that
// has client-go's already refuses them: register the Metrics there through [prometheus.WrapRegistererWithPrefix], and
// add the prefix to the names in the dashboard and the alerts. Each name of an election is another time series for as
// long as the process lives. The last metric is counted by [Resources], where the tokens are checked. dashboard.json is
// a dashboard for Grafana, alerts.yaml has rules for Prometheus. Package leaseotel has the same metrics for
// OpenTelemetry.
package leaseprom

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasefence/leasefence/fence"
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
	vectors
	hooks *lease.Hooks
}

// New returns the metrics. It returns an error if the buckets are not ascending.
func New(opts Options) (*Metrics, error) {
	if !slices.IsSorted(opts.Buckets) || len(slices.Compact(slices.Clone(opts.Buckets))) != len(opts.Buckets) {
		return nil, fmt.Errorf("leaseprom: Options.Buckets is %v, want bounds that ascend", opts.Buckets)
	}
	m := &Metrics{}
	for metric := range telemetry.Tokens {
		m.add(metric, opts.Lock != nil, opts.Buckets)
	}
	m.hooks = telemetry.Hooks(m.record, opts.Lock)
	return m, nil
}

// Hooks returns the hooks for [lease.Options]. To add other hooks, use [lease.JoinHooks].
func (m *Metrics) Hooks() *lease.Hooks {
	hooks := *m.hooks
	return &hooks
}

// vectors are the collectors of some metrics, by their numbers.
type vectors [len(telemetry.Definitions)]vector

type vector struct {
	prometheus.Collector

	record func(value float64, of telemetry.Values)
}

// add adds the collector of a metric. More says whether it may have the label of the user's function.
func (v *vectors) add(m telemetry.Metric, more bool, buckets []float64) {
	d := &telemetry.Definitions[m]
	opts, labels := prometheus.Opts{Name: d.Prometheus, Help: d.Help}, d.LabelsWith(more)
	switch d.Type {
	case telemetry.Counter:
		v[m] = newVector(prometheus.NewCounterVec(prometheus.CounterOpts(opts), labels), labels, prometheus.Counter.Add)
	case telemetry.Sum:
		v[m] = newVector(prometheus.NewGaugeVec(prometheus.GaugeOpts(opts), labels), labels, prometheus.Gauge.Add)
	case telemetry.Gauge, telemetry.Seconds:
		v[m] = newVector(prometheus.NewGaugeVec(prometheus.GaugeOpts(opts), labels), labels, prometheus.Gauge.Set)
	case telemetry.Histogram:
		if len(buckets) == 0 {
			buckets = d.Bounds
		}
		h := prometheus.HistogramOpts{Name: d.Prometheus, Help: d.Help, Buckets: buckets}
		v[m] = newVector(prometheus.NewHistogramVec(h, labels), labels, prometheus.Observer.Observe)
	}
}

type vec[T any] interface {
	prometheus.Collector
	WithLabelValues(values ...string) T
}

func newVector[T any](of vec[T], labels []string, record func(T, float64)) vector {
	if len(labels) == 0 {
		of.WithLabelValues() // it is there from the beginning
	}
	return vector{of, func(value float64, values telemetry.Values) {
		record(of.WithLabelValues(values[:len(labels)]...), value)
	}}
}

func (v *vectors) record(_ context.Context, m telemetry.Metric, value float64, of telemetry.Values) {
	v[m].record(value, of)
}

// Describe implements [prometheus.Collector].
func (v *vectors) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range v {
		if c.Collector != nil {
			c.Describe(ch)
		}
	}
}

// Collect implements [prometheus.Collector].
func (v *vectors) Collect(ch chan<- prometheus.Metric) {
	for _, c := range v {
		if c.Collector != nil {
			c.Collect(ch)
		}
	}
}

// Resources are the metrics of tokens at the resources whose marks have these [fence.Hooks]: a [prometheus.Collector]
// for one process and all its stores. A process that holds no locks needs no [Metrics] beside it.
type Resources struct {
	vectors
	hooks *fence.Hooks
}

// ResourceOptions are the settings of [NewResources]. The zero value of a field is its default.
type ResourceOptions struct {
	// Resource returns the value of the label resource for a token. Each value is another time series for as long as
	// the process lives, so there should be few. Default: no label resource.
	Resource func(fence.Access) string
}

// NewResources returns the metrics.
func NewResources(opts ResourceOptions) *Resources {
	r := &Resources{}
	r.add(telemetry.Tokens, opts.Resource != nil, nil)
	r.hooks = telemetry.FenceHooks(r.record, opts.Resource)
	return r
}

// Hooks returns the hooks for the options of a store, or for a [fence.Guard].
func (r *Resources) Hooks() *fence.Hooks {
	hooks := *r.hooks
	return &hooks
}
