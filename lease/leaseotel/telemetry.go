package leaseotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

const scope = "github.com/leasefence/leasefence/lease/leaseotel"

// Options are the settings of [New]. The zero value of a field is its default.
type Options struct {
	// MeterProvider receives the metrics. Default: [otel.GetMeterProvider].
	MeterProvider metric.MeterProvider

	// TracerProvider receives the spans. Default: [otel.GetTracerProvider].
	TracerProvider trace.TracerProvider

	// Lock returns the value of the metrics' attribute lock for an acquisition, for example the part of a name before
	// its first slash. Each value is another time series for as long as the process lives, so there should be few.
	// Default: no attribute lock.
	Lock func(lease.Acquisition) string

	// SpanLock returns the value of the spans' attribute leasefence.lock, for example the whole name: there may be many
	// values. If it is set, the spans also have the keys in etcd and the texts of errors, which contain names. Default:
	// spans have no names.
	SpanLock func(lease.Acquisition) string

	// Attributes are added to all metrics and spans, to tell the sessions of one process apart. Default: none.
	Attributes []attribute.KeyValue
}

// Telemetry is the metrics and traces of one session. Tell several sessions apart by [Options].Attributes.
type Telemetry struct {
	opts   Options
	tracer trace.Tracer
	hooks  *lease.Hooks // of the metrics
}

// New returns the telemetry. It returns an error if the meter provider refuses an instrument.
func New(opts Options) (*Telemetry, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	metrics, err := newInstruments(opts.MeterProvider.Meter(scope), 0, telemetry.Tokens, opts.Lock != nil, opts.Attributes)
	if err != nil {
		return nil, fmt.Errorf("leaseotel: Options.MeterProvider: %w", err)
	}
	return &Telemetry{opts, opts.TracerProvider.Tracer(scope), telemetry.Hooks(metrics.record, opts.Lock)}, nil
}

// Hooks returns the hooks for [lease.Options].
func (t *Telemetry) Hooks() *lease.Hooks {
	return lease.JoinHooks(t.hooks, &lease.Hooks{
		AcquireStart: t.startAcquire,
		Queued:       t.queued,
		AcquireEnd:   t.endAcquire,
		Released:     t.released,
		Lost:         func(ctx context.Context, _ lease.Hold, err *lease.LostError) { t.endHold(ctx, "lost", err) },
	})
}
