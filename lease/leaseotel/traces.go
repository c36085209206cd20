package leaseotel

import (
	"context"
	"crypto/sha256"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
)

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
