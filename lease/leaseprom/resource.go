package leaseprom

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

// Resources are the metrics of tokens at the resources whose marks have these [fence.Hooks]: a [prometheus.Collector]
// for one process and all its stores. A process that holds no locks needs no [Metrics] beside it.
type Resources struct {
	prometheus.Collector

	tokens   *prometheus.CounterVec
	resource func(fence.Access) string
}

// ResourceOptions are the settings of [NewResources]. The zero value of a field is its default.
type ResourceOptions struct {
	// Resource returns the value of the label resource for a token. Each value is another time series for as long as
	// the process lives, so there should be few. Default: no label resource.
	Resource func(fence.Access) string
}

// NewResources returns the metrics.
func NewResources(opts ResourceOptions) *Resources {
	labels := []string{"mode", "outcome"}
	if opts.Resource != nil {
		labels = append(labels, "resource")
	}
	tokens := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "leasefence", Name: "tokens_total", Help: "Tokens that have come to resources.",
	}, labels)
	return &Resources{tokens, tokens, opts.Resource}
}

// Hooks returns the hooks for the options of a store, or for a [fence.Guard].
func (r *Resources) Hooks() *fence.Hooks {
	return &fence.Hooks{
		Accepted: func(_ context.Context, a fence.Access) { r.count(a, nil) },
		Refused:  func(_ context.Context, a fence.Access, err error) { r.count(a, err) },
	}
}

func (r *Resources) count(a fence.Access, err error) {
	mode, outcome := telemetry.Access(a, err)
	labels := []string{mode, outcome}
	if r.resource != nil {
		labels = append(labels, r.resource(a))
	}
	r.tokens.WithLabelValues(labels...).Inc()
}
