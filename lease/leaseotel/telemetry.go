package leaseotel

import (
	"context"
	"fmt"
	"sync"

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

	acquisitions, losses, attempts, slow metric.Int64Counter
	waiting, locks                       metric.Int64UpDownCounter
	waited, held, roundTrip              metric.Float64Histogram
	left                                 metric.Float64Gauge
	state, leads, cleanUp                metric.Int64Gauge

	mu       sync.Mutex // guards the fields below
	series   map[series]metric.MeasurementOption
	leading  telemetry.Elections
	cleanUps telemetry.CleanUps
}

// New returns the telemetry. It returns an error if the meter provider refuses an instrument.
func New(opts Options) (*Telemetry, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	t := &Telemetry{
		opts: opts, tracer: opts.TracerProvider.Tracer(scope), series: make(map[series]metric.MeasurementOption),
		leading: telemetry.Elections{}, cleanUps: telemetry.CleanUps{},
	}
	if err := t.instruments(opts.MeterProvider.Meter(scope)); err != nil {
		return nil, fmt.Errorf("leaseotel: Options.MeterProvider: %w", err)
	}
	return t, nil
}

// Hooks returns the hooks for [lease.Options].
func (t *Telemetry) Hooks() *lease.Hooks {
	return &lease.Hooks{
		AcquireStart: func(ctx context.Context, a lease.Acquisition) context.Context {
			if a.Kind == lease.KindLeadership {
				t.lead(ctx, a.Names[0], 0)
			}
			return t.startAcquire(ctx, a)
		},
		Queued: func(ctx context.Context, a lease.Acquisition, ahead string) {
			t.waiting.Add(ctx, 1, t.of(a, "", ""))
			t.queued(ctx, ahead)
		},
		AcquireEnd: func(ctx context.Context, a lease.Acquisition, r lease.Acquired) {
			t.acquired(ctx, a, r)
			t.endAcquire(ctx, a, r)
		},
		Released: func(ctx context.Context, h lease.Hold, err error) {
			t.ended(ctx, h, telemetry.FoundLost(err))
			outcome := "released"
			if err != nil {
				outcome = telemetry.Outcome(lease.Acquisition{}, err)
			}
			t.endHold(ctx, outcome, err)
		},
		Lost: func(ctx context.Context, h lease.Hold, err *lease.LostError) {
			t.ended(ctx, h, err)
			t.endHold(ctx, "lost", err)
		},
		Renewed:      t.renewed,
		StateChanged: t.stateChanged,
		CleanUp:      t.cleanUpOf,
	}
}
