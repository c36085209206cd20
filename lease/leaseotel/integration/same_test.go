package integration_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/otlptranslator"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
	"github.com/leasefence/leasefence/lease/leaseotel"
	"github.com/leasefence/leasefence/lease/leaseprom"
)

// A session and a resource have the hooks of both packages, and each hook is called. The scraped metrics are the same,
// except for the exporter's own labels.
func TestMetrics_areThoseOfLeaseprom(t *testing.T) {
	first := func(a lease.Acquisition) string { return a.Names[0] }
	metrics, err := leaseprom.New(leaseprom.Options{Lock: first})
	require.NoError(t, err)
	resource := func(a fence.Access) string { return a.Resource }
	resources := leaseprom.NewResources(leaseprom.ResourceOptions{Resource: resource})
	want := prometheus.NewPedanticRegistry()
	prometheus.WrapRegistererWith(prometheus.Labels{"session": "one"}, want).MustRegister(metrics)
	want.MustRegister(resources)

	got := prometheus.NewPedanticRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(got),
		otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	require.NoError(t, err)
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	otel, err := leaseotel.New(leaseotel.Options{
		MeterProvider: meters, TracerProvider: noop.NewTracerProvider(), Lock: first,
		Attributes: []attribute.KeyValue{attribute.String("session", "one")},
	})
	require.NoError(t, err)
	others, err := leaseotel.NewResources(leaseotel.ResourceOptions{MeterProvider: meters, Resource: resource})
	require.NoError(t, err)

	h := lease.JoinHooks(metrics.Hooks(), otel.Hooks())
	a := lease.Acquisition{Kind: lease.KindLeadership, Names: []string{"a"}}
	granted := lease.Acquired{Token: 7, Locks: []string{"a"}, Waited: 1500 * time.Millisecond, Queued: true}
	hold := lease.Hold{Acquisition: a, Acquired: granted, Held: 90 * time.Minute}
	lost := &lease.LostError{Reason: lease.ReasonKeyDeleted}
	for _, end := range []func(context.Context){
		func(context.Context) {}, // it lasts
		func(ctx context.Context) { h.Released(ctx, hold, nil) },
		func(ctx context.Context) { h.Lost(ctx, hold, lost) },
	} {
		ctx := h.AcquireStart(t.Context(), a)
		h.Queued(ctx, a, "")
		h.AcquireEnd(ctx, a, granted)
		end(ctx)
	}
	h.AcquireEnd(h.AcquireStart(t.Context(), a), a, lease.Acquired{Err: lease.ErrClosed})
	h.Queued(h.AcquireStart(t.Context(), a), a, "") // it waits
	h.Renewed(lease.Renewal{RoundTrip: 30 * time.Millisecond, Attempts: 2, Left: 4500 * time.Millisecond})
	h.StateChanged(lease.Status{State: lease.StateJeopardy})
	h.CleanUp(1, 3)
	for _, hooks := range []*fence.Hooks{resources.Hooks(), others.Hooks()} {
		g := fence.Guard{Hooks: hooks}
		require.NoError(t, g.Claim("orders", 54))
		require.ErrorIs(t, g.Check("orders", 41), fence.ErrStale)
		require.ErrorIs(t, g.CheckRead("orders", 53), fence.ErrStale)
		require.NoError(t, g.Move("orders", 55, "/orders"))
		other := fence.WithLock(fence.NewContext(t.Context(), 90), "/accounts")
		require.ErrorIs(t, g.CheckContext(other, "orders", 90), fence.ErrOtherLock)
	}
	scraped := scrape(t, want)
	require.Equal(t, scraped, scrape(t, got))
	for _, d := range telemetry.Definitions {
		require.Contains(t, scraped, d.Prometheus, "the test does not cause this")
	}
}

// The exporter changes the names and units, so this compares them with the package's documentation.
func TestMetrics_areDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "doc.go"))
	require.NoError(t, err)
	for _, d := range telemetry.Definitions {
		require.Contains(t, string(doc), "//\t"+strings.TrimSpace(d.OpenTelemetry+" "+d.Unit)+"   ")
	}
}

// scrape returns the metrics as Prometheus reads them, without the exporter's own labels.
func scrape(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var text strings.Builder
	for _, f := range families {
		if f.GetName() == "target_info" {
			continue
		}
		for _, m := range f.Metric {
			m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool { return strings.HasPrefix(l.GetName(), "otel_scope_") })
		}
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	return text.String()
}
