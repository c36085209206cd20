package leaseotel

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

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
