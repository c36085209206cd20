package leaseotel

import (
	"context"
	"errors"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

// bounds are n bounds of a histogram, each four times the one before.
func bounds(first float64, n int) metric.HistogramOption {
	all := make([]float64, n)
	for i := range all {
		all[i] = first
		first *= 4
	}
	return metric.WithExplicitBucketBoundaries(all...)
}

func (t *Telemetry) instruments(m metric.Meter) error {
	var errs [13]error
	in, says := metric.WithUnit, metric.WithDescription
	short, long := bounds(0.001, 8), bounds(0.01, 11)
	t.acquisitions, errs[0] = m.Int64Counter("leasefence.acquisitions", in("{acquisition}"), says("Acquisitions that have ended."))
	t.waiting, errs[1] = m.Int64UpDownCounter("leasefence.acquisitions_waiting", in("{acquisition}"), says("Acquisitions that wait now."))
	t.waited, errs[2] = m.Float64Histogram("leasefence.acquisition.duration", in("s"), says("Time to the grant of acquisitions."), short)
	t.locks, errs[3] = m.Int64UpDownCounter("leasefence.locks_held", in("{lock}"), says("Locks that are held now."))
	t.held, errs[4] = m.Float64Histogram("leasefence.lock.held", in("s"), says("Time for which locks were held."), long)
	t.losses, errs[5] = m.Int64Counter("leasefence.losses", in("{lock}"), says("Locks that were lost."))
	t.roundTrip, errs[6] = m.Float64Histogram("leasefence.renewal.duration", in("s"), says("Round trips of the lease's renewals."), short)
	t.attempts, errs[7] = m.Int64Counter("leasefence.renewal.attempts", in("{attempt}"), says("Attempts to renew the lease."))
	t.left, errs[8] = m.Float64Gauge("leasefence.renewal.left", in("s"), says("Time until the deadline when the last renewal came."))
	t.state, errs[9] = m.Int64Gauge("leasefence.session.state", says("1 for the state of the session's lease, 0 for the others."))
	t.cleanUp, errs[10] = m.Int64Gauge("leasefence.cleanup.keys", in("{key}"), says("Keys that are to be deleted in the background."))
	t.leads, errs[11] = m.Int64Gauge("leader_election_master_status",
		says("1 while this process leads the election, 0 while it does not."))
	t.slow, errs[12] = m.Int64Counter("leader_election_slowpath_total", in("{renewal}"),
		says("Renewals that took more than one attempt while this process led."))
	return errors.Join(errs[:]...)
}

// series identifies the attributes of a measurement.
type series struct {
	kind            lease.Kind // 0: none
	lock, key, also string     // also is the value of key; key may be ""
}

// of returns the attributes of an acquisition: its kind, its lock, and the attribute key if that is not "".
func (t *Telemetry) of(a lease.Acquisition, key, value string) metric.MeasurementOption {
	s := series{kind: a.Kind, key: key, also: value}
	if t.opts.Lock != nil {
		s.lock = t.opts.Lock(a)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.attributes(s)
}

// attributes returns the attributes of a series, which are made once. The caller holds t.mu.
func (t *Telemetry) attributes(s series) metric.MeasurementOption {
	if option, ok := t.series[s]; ok {
		return option
	}
	all := slices.Clone(t.opts.Attributes)
	if s.kind != 0 {
		all = append(all, attribute.String("kind", telemetry.Kind(s.kind)))
		if t.opts.Lock != nil {
			all = append(all, attribute.String("lock", s.lock))
		}
	}
	if s.key != "" {
		all = append(all, attribute.String(s.key, s.also))
	}
	t.series[s] = metric.WithAttributeSet(attribute.NewSet(all...))
	return t.series[s]
}

func (t *Telemetry) acquired(ctx context.Context, a lease.Acquisition, r lease.Acquired) {
	kind := t.of(a, "", "")
	if r.Queued && !a.Try {
		t.waiting.Add(ctx, -1, kind)
	}
	t.acquisitions.Add(ctx, 1, t.of(a, "outcome", telemetry.Outcome(a, r.Err)))
	if r.Err != nil {
		return
	}
	t.waited.Record(ctx, r.Waited.Seconds(), kind)
	t.locks.Add(ctx, 1, kind)
	if a.Kind == lease.KindLeadership {
		t.lead(ctx, a.Names[0], 1)
	}
}

func (t *Telemetry) ended(ctx context.Context, h lease.Hold, lost *lease.LostError) {
	if lost != nil {
		t.losses.Add(ctx, 1, t.of(h.Acquisition, "reason", telemetry.Reason(lost.Reason)))
	}
	kind := t.of(h.Acquisition, "", "")
	t.locks.Add(ctx, -1, kind)
	t.held.Record(ctx, h.Held.Seconds(), kind)
	if h.Kind == lease.KindLeadership {
		t.lead(ctx, h.Names[0], -1)
	}
}

func (t *Telemetry) lead(ctx context.Context, name string, change int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.attributes(series{key: "name", also: name})
	t.leads.Record(ctx, int64(t.leading.Add(name, change)), of)
	t.slow.Add(ctx, 0, of)
}

func (t *Telemetry) renewed(r lease.Renewal) {
	ctx := context.Background()
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.attributes(series{})
	t.roundTrip.Record(ctx, r.RoundTrip.Seconds(), of)
	t.attempts.Add(ctx, int64(r.Attempts), of)
	t.left.Record(ctx, r.Left.Seconds(), of)
	for _, name := range t.leading.Slow(r) {
		t.slow.Add(ctx, 1, t.attributes(series{key: "name", also: name}))
	}
}

func (t *Telemetry) stateChanged(s lease.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for state, value := range telemetry.States(s.State) {
		t.state.Record(context.Background(), int64(value), t.attributes(series{key: "state", also: state}))
	}
}

func (t *Telemetry) cleanUpOf(id clientv3.LeaseID, keys int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanUp.Record(context.Background(), int64(t.cleanUps.Set(id, keys)), t.attributes(series{}))
}
