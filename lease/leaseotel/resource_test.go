package leaseotel_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease/leaseotel"
)

// The folder integration tests the metric.
func TestResources(t *testing.T) {
	p := newProcess()
	r, err := leaseotel.NewResources(leaseotel.ResourceOptions{
		SpanResource: func(a fence.Access) string { return "the " + a.Resource },
	})
	require.NoError(t, err)
	g := fence.Guard{Hooks: r.Hooks()}
	require.NoError(t, g.Claim("orders", 41))
	require.NoError(t, g.Do("orders", 54, func() error { return nil }))
	require.ErrorIs(t, g.Check("orders", 41), fence.ErrStale)
	require.NoError(t, g.Move("accounts", 54, "/accounts"))
	p.request(t.Context(), func(ctx context.Context) {
		require.ErrorIs(t, g.CheckReadContext(ctx, "orders", 53), fence.ErrStale)
	})
	p.request(t.Context(), func(ctx context.Context) {
		ctx = fence.WithLock(fence.NewContext(ctx, 90), "/orders")
		require.ErrorIs(t, g.CheckContext(ctx, "accounts", 90), fence.ErrOtherLock)
	})
	require.NoError(t, g.Claim("b\xff", 2), "a resource may have any name, an attribute not")
	p.request(t.Context(), func(ctx context.Context) {
		require.ErrorIs(t, g.CheckContext(ctx, "b\xff", 1), fence.ErrStale)
	})
	spans := p.exporter.GetSpans()
	require.Len(t, spans, 3)
	require.Equal(t, "53", value(spans[0], "leasefence.token"))
	require.Empty(t, value(spans[0], "leasefence.grant"), "the context does not name the lock")
	require.Empty(t, spans[0].Links)
	require.Len(t, spans[0].Events, 1)
	require.Equal(t, " {highest=54 mode=read outcome=stale resource=the orders}", attributes(spans[0].Events[0].Attributes))
	require.Len(t, spans[1].Links, 1)
	link := leaseotel.Link("/orders", 90).SpanContext
	require.Equal(t, link, spans[1].Links[0].SpanContext)
	require.Equal(t, link.TraceID().String(), value(spans[1], "leasefence.grant"))
	require.Equal(t, " {mode=write outcome=other_lock resource=the accounts}", attributes(spans[1].Events[0].Attributes))
	require.Equal(t, " {highest=2 mode=write outcome=stale resource=the b\ufffd}", attributes(spans[2].Events[0].Attributes))
}

// refusing refuses instruments.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

var errRefused = errors.New("refused")

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return noop.Int64Counter{}, errRefused
}

func TestNew_input(t *testing.T) {
	_, err := leaseotel.New(leaseotel.Options{MeterProvider: refusing{}})
	require.ErrorIs(t, err, errRefused)
	require.ErrorContains(t, err, "leaseotel: Options.MeterProvider: ")
	_, err = leaseotel.NewResources(leaseotel.ResourceOptions{MeterProvider: refusing{}})
	require.ErrorIs(t, err, errRefused)
	_, err = leaseotel.New(leaseotel.Options{}) // with the global providers
	require.NoError(t, err)
	_, err = leaseotel.NewResources(leaseotel.ResourceOptions{})
	require.NoError(t, err)
}
