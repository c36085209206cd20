package leaseotel

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

// instruments are the instruments of some metrics, by their numbers.
type instruments struct {
	all  [len(telemetry.Definitions)]instrument
	more bool                 // with the attribute of the user's function
	also []attribute.KeyValue // attributes of all metrics

	mu     sync.Mutex // guards series
	series map[series]metric.MeasurementOption
}

type instrument func(ctx context.Context, value float64, of metric.MeasurementOption)

// series identifies the attributes of a measurement.
type series struct {
	metric telemetry.Metric
	values telemetry.Values
}

// newInstruments creates the instruments of the metrics from first on, up to before.
func newInstruments(m metric.Meter, first, before telemetry.Metric, more bool, also []attribute.KeyValue) (*instruments, error) {
	all := &instruments{more: more, also: also, series: make(map[series]metric.MeasurementOption)}
	var errs error
	for i := first; i < before; i++ {
		made, err := newInstrument(m, &telemetry.Definitions[i])
		all.all[i], errs = made, errors.Join(errs, err)
	}
	return all, errs
}

func newInstrument(m metric.Meter, d *telemetry.Definition) (instrument, error) {
	name, unit, says := d.OpenTelemetry, metric.WithUnit(d.Unit), metric.WithDescription(d.Help)
	switch d.Type {
	case telemetry.Counter:
		i, err := m.Int64Counter(name, unit, says)
		return func(ctx context.Context, value float64, of metric.MeasurementOption) { i.Add(ctx, int64(value), of) }, err
	case telemetry.Sum:
		i, err := m.Int64UpDownCounter(name, unit, says)
		return func(ctx context.Context, value float64, of metric.MeasurementOption) { i.Add(ctx, int64(value), of) }, err
	case telemetry.Gauge:
		i, err := m.Int64Gauge(name, unit, says)
		return func(ctx context.Context, value float64, of metric.MeasurementOption) { i.Record(ctx, int64(value), of) }, err
	case telemetry.Seconds:
		i, err := m.Float64Gauge(name, unit, says)
		return func(ctx context.Context, value float64, of metric.MeasurementOption) { i.Record(ctx, value, of) }, err
	default: // telemetry.Histogram
		i, err := m.Float64Histogram(name, unit, says, metric.WithExplicitBucketBoundaries(d.Bounds...))
		return func(ctx context.Context, value float64, of metric.MeasurementOption) { i.Record(ctx, value, of) }, err
	}
}

func (i *instruments) record(ctx context.Context, m telemetry.Metric, value float64, of telemetry.Values) {
	i.all[m](ctx, value, i.attributes(series{m, of}))
}

// attributes returns the attributes of a series, which are made once.
func (i *instruments) attributes(s series) metric.MeasurementOption {
	i.mu.Lock()
	defer i.mu.Unlock()
	if option, ok := i.series[s]; ok {
		return option
	}
	all := slices.Clone(i.also)
	for n, label := range telemetry.Definitions[s.metric].LabelsWith(i.more) {
		all = append(all, attribute.String(label, s.values[n]))
	}
	i.series[s] = metric.WithAttributeSet(attribute.NewSet(all...))
	return i.series[s]
}
