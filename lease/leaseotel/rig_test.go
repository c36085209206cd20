package leaseotel_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasefence/leasefence/lease/leaseotel"
)

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
