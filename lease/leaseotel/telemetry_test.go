package leaseotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leaseotel"
	"github.com/leasefence/leasefence/lease/leasetest"
)

func names(a lease.Acquisition) string { return strings.Join(a.Names, "+") + " of " + a.Owner }

func hooked(t *testing.T, srv *leasetest.Server, opts leaseotel.Options) *leasetest.Session {
	t.Helper()
	telemetry, err := leaseotel.New(opts)
	require.NoError(t, err)
	return srv.Session(t, lease.Options{Owner: "me", Hooks: telemetry.Hooks()})
}

// Locks of each kind have a span for their acquisition, below the caller's span, and a span for their hold, with a link
// to the grant. The hooks are those that package lease tests for the kinds that are left out here.
func TestTelemetry_spansOfEachKind(t *testing.T) {
	do := func(context.Context, fence.Token) error {
		time.Sleep(time.Minute)
		return nil
	}
	for _, c := range []struct {
		kind, of string
		links    int
		run      func(ctx context.Context, s *lease.Session) error
	}{
		{"lock", "a of me", 1, func(ctx context.Context, s *lease.Session) error { return s.Do(ctx, "a", do) }},
		{"lock set", "b+a of me", 2, func(ctx context.Context, s *lease.Session) error { return s.DoAll(ctx, []string{"b", "a"}, do) }},
		{"leadership", "a of v", 1, func(ctx context.Context, s *lease.Session) error {
			l, err := election.Campaign(ctx, s, "a", election.Options{Value: "v"})
			if err != nil {
				return err
			}
			return errors.Join(do(ctx, 0), l.Resign(ctx))
		}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, srv := newProcess(), leasetest.New(t)
				opts := p.options()
				opts.SpanLock = names
				opts.Attributes = []attribute.KeyValue{attribute.String("session", "one")}
				s := hooked(t, srv, opts)
				other, err := srv.Session(t, lease.Options{}).Lock(t.Context(), "a")
				require.NoError(t, err)
				done := make(chan error, 1)
				go p.request(t.Context(), func(ctx context.Context) { done <- c.run(ctx, s.Session) })
				time.Sleep(2 * time.Second)
				require.NoError(t, other.Unlock(t.Context()))
				require.NoError(t, <-done)

				spans := p.ended()
				require.Len(t, spans, 3)
				key := value(spans[1], "leasefence.key")
				require.True(t, strings.HasPrefix(key, "a/") || strings.HasPrefix(key, "b/"), key)
				is := " {key=" + key + " kind=" + strings.ReplaceAll(c.kind, " ", "_") + " lock=" + c.of + " outcome="
				require.Equal(t, "acquire "+c.kind+" < request, 2s"+is+"granted queued=true session=one try=false}, "+
					"at 0s leasefence.queued {ahead="+other.Key()+"}\n"+
					"hold "+c.kind+" < acquire "+c.kind+", 1m0s"+is+"released session=one try=false}\n"+
					"request < , 1m2s {}", text(spans))
				hold := spans[1]
				require.Len(t, hold.Links, c.links)
				require.NotEmpty(t, value(hold, "leasefence.token"))
				for _, attr := range []attribute.Key{"leasefence.token", "leasefence.grant"} {
					require.Equal(t, value(spans[0], attr), value(hold, attr))
				}
				if c.links == 1 {
					require.Equal(t, value(hold, "leasefence.grant"), hold.Links[0].SpanContext.TraceID().String())
				}
			})
		})
	}
}

// A failure or a loss is an error of the span. A lock that was taken, a caller that gives up and a session that is
// closed are not. Only with SpanLock are there names, and texts of errors, which contain names.
func TestTelemetry_spansOfOutcomes(t *testing.T) {
	lost := func(why lease.Reason) func(context.Context, *lease.Hooks) {
		return func(ctx context.Context, h *lease.Hooks) {
			h.Lost(ctx, lease.Hold{}, &lease.LostError{Reason: why, Err: errors.New("secret")})
		}
	}
	const granted = "acquire lock < , 0s {kind=lock outcome=granted queued=false try=false}, at 0s leasefence.queued {}\nhold lock < acquire lock, 0s"
	secret := func(err error) error { return fmt.Errorf("secret: %w", err) }
	for name, c := range map[string]struct {
		err  error
		end  func(context.Context, *lease.Hooks) // of the hold, if the acquisition has no error
		want string
	}{
		"not free":            {secret(lease.ErrLocked), nil, `acquire lock < , 0s {kind=lock outcome=locked queued=true try=true}`},
		"given up":            {secret(context.DeadlineExceeded), nil, `acquire lock < , 0s {kind=lock outcome=canceled queued=false try=false}, at 0s leasefence.queued {}`},
		"lost while it waits": {secret(lease.ErrLost), nil, `acquire lock < , 0s, Error "lost" {error.type=lost kind=lock outcome=lost queued=false try=false}, at 0s leasefence.queued {}`},
		"closed before":       {secret(lease.ErrClosed), nil, `acquire lock < , 0s {kind=lock outcome=closed queued=false try=false}, at 0s leasefence.queued {}`},
		"key deleted": {
			nil, lost(lease.ReasonKeyDeleted),
			granted + `, Error "key_deleted" {error.type=key_deleted kind=lock outcome=lost reason=key_deleted try=false}`,
		},
		"closed": {nil, lost(lease.ReasonSessionClosed), granted + ` {kind=lock outcome=lost reason=session_closed try=false}`},
		"released without an answer": {
			nil, func(ctx context.Context, h *lease.Hooks) {
				h.Released(ctx, lease.Hold{}, secret(context.DeadlineExceeded))
			},
			granted + ` {kind=lock outcome=canceled try=false}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess()
				telemetry, err := leaseotel.New(p.options())
				require.NoError(t, err)
				h, held := telemetry.Hooks(), errors.Is(c.err, lease.ErrLocked)
				a := lease.Acquisition{Kind: lease.KindLock, Names: []string{"secret"}, Try: held}
				ctx := h.AcquireStart(t.Context(), a)
				if !held {
					h.Queued(ctx, a, "secret/0")
				}
				h.AcquireEnd(ctx, a, lease.Acquired{Locks: a.Names, Key: "secret/1", Queued: held, Err: c.err})
				if c.end != nil {
					c.end(ctx, h)
				}
				got := text(p.ended())
				require.Equal(t, c.want, got)
				require.NotContains(t, got, "secret")
			})
		})
	}
	p := newProcess()
	opts := p.options()
	opts.SpanLock = func(a lease.Acquisition) string { return a.Names[0][:1] } // may cut a character in two
	telemetry, err := leaseotel.New(opts)
	require.NoError(t, err)
	a, h := lease.Acquisition{Kind: lease.KindLock, Names: []string{"ä"}}, telemetry.Hooks()
	ctx := h.AcquireStart(t.Context(), a)
	h.AcquireEnd(ctx, a, lease.Acquired{})
	lost(lease.ReasonLeaseGone)(ctx, h)
	hold := p.exporter.GetSpans()[1]
	require.Equal(t, "lease: lost: "+lease.ReasonLeaseGone.String()+": secret", hold.Status.Description)
	require.Equal(t, "lease_gone", value(hold, "error.type"))
	require.Equal(t, "\ufffd", value(hold, "leasefence.lock"))
}

// spied is a client's KV that records the span of each transaction.
type spied struct {
	clientv3.KV

	below []trace.SpanID
}

func (s *spied) Txn(ctx context.Context) clientv3.Txn {
	s.below = append(s.below, trace.SpanContextFromContext(ctx).SpanID())
	return s.KV.Txn(ctx)
}

// The span of an acquisition is in the context of the requests that are sent for it alone.
func TestTelemetry_requestsAreBelowTheAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, client := newProcess(), leasetest.New(t).Client(t)
		kv := &spied{KV: client.KV}
		client.KV = kv
		telemetry, err := leaseotel.New(p.options())
		require.NoError(t, err)
		s, err := lease.NewSession(t.Context(), client.Client, lease.Options{Hooks: telemetry.Hooks()})
		require.NoError(t, err)
		kv.below = nil
		_, err = s.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, []trace.SpanID{p.ended()[0].SpanContext.SpanID()}, kv.below)
		require.NoError(t, s.Close(t.Context()))
	})
}

// never samples nothing, and counts the questions.
type never struct{ asked int }

func (n *never) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	n.asked++
	return sdktrace.NeverSample().ShouldSample(p)
}

func (*never) Description() string { return "never" }

// If the acquisition is not sampled, no span is made for the hold.
func TestTelemetry_notSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sampler never
		p := newProcess(sdktrace.WithSampler(&sampler))
		s := hooked(t, leasetest.New(t), p.options())
		require.NoError(t, s.Do(t.Context(), "a", func(context.Context, fence.Token) error { return nil }))
		require.Empty(t, p.ended())
		require.Equal(t, 1, sampler.asked)
	})
}

// The ID of a grant is the same in all versions, since processes of several versions run at the same time.
func TestLink(t *testing.T) {
	l := leaseotel.Link("orders", 54)
	require.True(t, l.SpanContext.IsValid())
	require.Equal(t, "ed02ae6cf3e097cfb0ba74c7d0af6b8dd66b0b6bd48bdbdf", l.SpanContext.TraceID().String()+l.SpanContext.SpanID().String())
	for _, other := range []struct {
		lock  string
		token fence.Token
	}{{"orders", 55}, {"order", 54}, {"4\x00orders", 5}} {
		require.NotEqual(t, l.SpanContext, leaseotel.Link(other.lock, other.token).SpanContext)
	}
}

// Under one span come a token with a name, one without, and a refusal at a node above, whose token is of another lock.
func TestResources_attributesAndLinksAreOfOneGrant(t *testing.T) {
	p := newProcess()
	r, err := leaseotel.NewResources(leaseotel.ResourceOptions{})
	require.NoError(t, err)
	p.request(t.Context(), func(ctx context.Context) {
		r.Hooks().Tell(ctx, fence.Access{Resource: "a/b", Token: 41, Lock: "a/~b"}, nil)
		r.Hooks().Tell(ctx, fence.Access{Resource: "a/b", Token: 41, Lock: "a/~b"}, &fence.StaleError{Resource: "a", Token: 41, Highest: 54})
		r.Hooks().Tell(ctx, fence.Access{Resource: "a/b", Token: 41, Lock: "a/~b"}, &fence.StaleError{Resource: "a/b", Token: 41}) // by an unknown mark
		r.Hooks().Tell(ctx, fence.Access{Resource: "rows", Token: 60}, nil)
	})
	span := p.exporter.GetSpans()[0]
	require.Len(t, span.Links, 2, "only to its own grant: the holder of the node above has another lock")
	require.Equal(t, "60", value(span, "leasefence.token"))
	require.Empty(t, value(span, "leasefence.grant"), "of 41 beside the token 60")
}

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
