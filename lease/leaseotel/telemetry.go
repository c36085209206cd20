package leaseotel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasefence/leasefence/fence"
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

// Resources are the telemetry of tokens at the resources whose marks have these [fence.Hooks], for one process and all
// its stores. A process that holds no locks needs no [Telemetry] beside it.
//
// The span of the context of Claim, Check or Do gets the attributes leasefence.token and leasefence.grant. If the token
// is refused, it also gets an event leasefence.refused and links; see the package's documentation. If several tokens
// are checked under one span, it has the attributes of the last. Resources never sets the status of the span: its owner
// decides whether a refusal is an error.
type Resources struct {
	opts  ResourceOptions
	hooks *fence.Hooks // of the metric
}

// ResourceOptions are the settings of [NewResources]. The zero value of a field is its default.
type ResourceOptions struct {
	// MeterProvider receives the metrics. Default: [otel.GetMeterProvider].
	MeterProvider metric.MeterProvider

	// Resource returns the value of the metric's attribute resource for a token. Each value is another time series for
	// as long as the process lives, so there should be few. Default: no attribute resource.
	Resource func(fence.Access) string

	// SpanResource returns the value of the attribute leasefence.resource of the event of a refusal. There may be many
	// values. Default: spans have no names.
	SpanResource func(fence.Access) string
}

// NewResources returns the telemetry. It returns an error if the meter provider refuses an instrument.
func NewResources(opts ResourceOptions) (*Resources, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	metrics, err := newInstruments(opts.MeterProvider.Meter(scope), telemetry.Tokens, telemetry.Tokens+1, opts.Resource != nil, nil)
	if err != nil {
		return nil, fmt.Errorf("leaseotel: ResourceOptions.MeterProvider: %w", err)
	}
	return &Resources{opts, telemetry.FenceHooks(metrics.record, opts.Resource)}, nil
}

// Hooks returns the hooks for the options of a store, or for a [fence.Guard].
func (r *Resources) Hooks() *fence.Hooks {
	return &fence.Hooks{
		Accepted: func(ctx context.Context, a fence.Access) {
			r.hooks.Accepted(ctx, a)
			r.mark(ctx, a)
		},
		Refused: func(ctx context.Context, a fence.Access, err error) {
			r.hooks.Refused(ctx, a, err)
			r.mark(ctx, a)
			r.refused(ctx, a, err)
		},
	}
}

// mark adds the token to the span of ctx, so that a search for the token finds the span.
func (r *Resources) mark(ctx context.Context, a fence.Access) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	grant := attribute.String("leasefence.grant", "") // replaces that of an earlier token
	if a.Lock != "" {
		grant = grantOf(Link(a.Lock, a.Token))
	}
	span.SetAttributes(tokenOf(a.Token), grant)
}

func (r *Resources) refused(ctx context.Context, a fence.Access, err error) {
	span := trace.SpanFromContext(ctx)
	mode, outcome := telemetry.Access(a, err)
	of := []attribute.KeyValue{
		tokenOf(a.Token), attribute.String("leasefence.mode", mode), attribute.String("leasefence.outcome", outcome),
	}
	if r.opts.SpanResource != nil {
		of = append(of, attribute.String("leasefence.resource", telemetry.Value(r.opts.SpanResource(a))))
	}
	tokens := []fence.Token{a.Token}
	if stale, ok := errors.AsType[*fence.StaleError](err); ok && stale.Highest != 0 {
		of = append(of, attribute.String("leasefence.highest", stale.Highest.String()))
		if stale.Resource == a.Resource { // at a node above, in a tree, it is of another lock
			tokens = append(tokens, stale.Highest)
		}
	}
	span.AddEvent("leasefence.refused", trace.WithAttributes(of...))
	for _, token := range tokens {
		if a.Lock != "" {
			span.AddLink(Link(a.Lock, token))
		}
	}
}

// Link returns the link to the grant of a lock with this token. Lock is the lock's name with the session's prefix. The
// link is the same in every process; see the package's documentation.
func Link(lock string, token fence.Token) trace.Link {
	sum := sha256.Sum256([]byte("leasefence\x00" + token.String() + "\x00" + lock))
	return trace.Link{
		SpanContext: trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID(sum[:16]), SpanID: trace.SpanID(sum[16:24]), Remote: true,
		}),
		Attributes: []attribute.KeyValue{tokenOf(token)},
	}
}

func tokenOf(t fence.Token) attribute.KeyValue {
	return attribute.String("leasefence.token", t.String())
}

func grantOf(l trace.Link) attribute.KeyValue {
	return attribute.String("leasefence.grant", l.SpanContext.TraceID().String())
}

// spans are the spans of an acquisition and its hold. They are in the context that the hook AcquireStart returns.
type spans struct {
	acquire, hold trace.Span
	about         []attribute.KeyValue
}

func (t *Telemetry) startAcquire(ctx context.Context, a lease.Acquisition) context.Context {
	s := &spans{about: append(slices.Clone(t.opts.Attributes),
		attribute.String("leasefence.kind", telemetry.Kind(a.Kind)), attribute.Bool("leasefence.try", a.Try))}
	if t.opts.SpanLock != nil {
		s.about = append(s.about, attribute.String("leasefence.lock", telemetry.Value(t.opts.SpanLock(a))))
	}
	ctx, s.acquire = t.tracer.Start(ctx, "acquire "+a.Kind.String(), trace.WithAttributes(s.about...))
	return context.WithValue(ctx, t, s)
}

func (t *Telemetry) queued(ctx context.Context, _ lease.Acquisition, ahead string) {
	s, ok := ctx.Value(t).(*spans)
	if !ok {
		return
	}
	if t.opts.SpanLock == nil || ahead == "" {
		s.acquire.AddEvent("leasefence.queued")
		return
	}
	s.acquire.AddEvent("leasefence.queued", trace.WithAttributes(attribute.String("leasefence.ahead", telemetry.Value(ahead))))
}

func (t *Telemetry) endAcquire(ctx context.Context, a lease.Acquisition, r lease.Acquired) {
	s, ok := ctx.Value(t).(*spans)
	if !ok {
		return
	}
	defer s.acquire.End()
	if !s.acquire.IsRecording() {
		return // the hold is not recorded either
	}
	outcome := telemetry.Outcome(ctx, a, r.Err)
	s.acquire.SetAttributes(attribute.Bool("leasefence.queued", r.Queued), attribute.String("leasefence.outcome", outcome))
	if r.Err != nil {
		t.fail(s.acquire, outcome, r.Err)
		return
	}
	of := []attribute.KeyValue{tokenOf(r.Token)}
	links := make([]trace.Link, len(r.Locks))
	for i, lock := range r.Locks {
		links[i] = Link(lock, r.Token)
	}
	if len(links) == 1 {
		of = append(of, grantOf(links[0]))
	}
	if t.opts.SpanLock != nil {
		of = append(of, attribute.String("leasefence.key", r.Key))
	}
	s.acquire.SetAttributes(of...)
	_, s.hold = t.tracer.Start(ctx, "hold "+a.Kind.String(), trace.WithAttributes(append(s.about, of...)...), trace.WithLinks(links...))
}

func (t *Telemetry) released(ctx context.Context, _ lease.Hold, err error) {
	outcome := "released"
	if err != nil {
		outcome = telemetry.Outcome(ctx, lease.Acquisition{}, err)
	}
	t.endHold(ctx, outcome, err)
}

// endHold ends the span of a hold. Err is its loss, or the error of Unlock.
func (t *Telemetry) endHold(ctx context.Context, outcome string, err error) {
	s, ok := ctx.Value(t).(*spans)
	if !ok || s.hold == nil {
		return
	}
	s.hold.SetAttributes(attribute.String("leasefence.outcome", outcome))
	if lost, ok := err.(*lease.LostError); ok { //nolint:errorlint // wrapped, it may be another lock's
		outcome = telemetry.Reason(lost.Reason)
		s.hold.SetAttributes(attribute.String("leasefence.reason", outcome))
	}
	t.fail(s.hold, outcome, err)
	s.hold.End()
}

// fail sets the status of a span to error, unless the caller asked for this outcome.
func (t *Telemetry) fail(span trace.Span, kind string, err error) {
	switch kind {
	case "released", "locked", "canceled", "closed", telemetry.Reason(lease.ReasonSessionClosed):
		return
	}
	text := kind
	if t.opts.SpanLock != nil {
		text = err.Error()
	}
	span.SetAttributes(attribute.String("error.type", kind))
	span.SetStatus(codes.Error, text)
}
