package leaseprom

import (
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

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
