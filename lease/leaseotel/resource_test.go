package leaseotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

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

// process collects the spans of one process.
type process struct {
	exporter *tracetest.InMemoryExporter
	tracers  *sdktrace.TracerProvider
}

func newProcess(options ...sdktrace.TracerProviderOption) *process {
	exporter := tracetest.NewInMemoryExporter()
	return &process{exporter, sdktrace.NewTracerProvider(append(options, sdktrace.WithSyncer(exporter))...)}
}

func (p *process) options() leaseotel.Options { return leaseotel.Options{TracerProvider: p.tracers} }

// request runs fn under a span, as a caller with its own traces does.
func (p *process) request(ctx context.Context, fn func(context.Context)) {
	ctx, span := p.tracers.Tracer("test").Start(ctx, "request")
	defer span.End()
	fn(ctx)
}

// ended returns the spans that have ended since the last call.
func (p *process) ended() tracetest.SpanStubs {
	synctest.Wait()
	defer p.exporter.Reset()
	return p.exporter.GetSpans()
}

// text returns a line for each span: its name, the name of its parent if that is among the spans, its duration, its
// status, its attributes except token and grant, and its events.
func text(spans tracetest.SpanStubs) string {
	names := map[trace.SpanID]string{}
	for _, s := range spans {
		names[s.SpanContext.SpanID()] = s.Name
	}
	var lines []string
	for _, s := range spans {
		line := fmt.Sprintf("%s < %s, %v", s.Name, names[s.Parent.SpanID()], s.EndTime.Sub(s.StartTime))
		if s.Status.Code != codes.Unset {
			line += fmt.Sprintf(", %v %q", s.Status.Code, s.Status.Description)
		}
		line += attributes(s.Attributes)
		for _, e := range s.Events {
			line += fmt.Sprintf(", at %v %s%s", e.Time.Sub(s.StartTime), e.Name, attributes(e.Attributes))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func attributes(all []attribute.KeyValue) string {
	var texts []string
	for _, a := range all {
		key := strings.TrimPrefix(string(a.Key), "leasefence.")
		if key != "token" && key != "grant" {
			texts = append(texts, key+"="+a.Value.String())
		}
	}
	slices.Sort(texts)
	return " {" + strings.Join(texts, " ") + "}"
}

func value(s tracetest.SpanStub, key attribute.Key) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}
