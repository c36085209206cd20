package leaseotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leaseotel"
	"github.com/leasefence/leasefence/lease/leasetest"
)

func TestTelemetry_metricsOfLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, srv := newProcess(), leasetest.New(t)
		s := hooked(t, srv, p.options())
		ctx := t.Context()
		a, err := s.Lock(ctx, "a")
		require.NoError(t, err)
		_, err = s.TryLock(ctx, "a")
		require.ErrorIs(t, err, lease.ErrLocked)
		waits := make(chan error, 1)
		short, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		go func() {
			_, err := s.RLock(short, "a")
			waits <- err
		}()
		time.Sleep(time.Second)
		state := `leasefence.session.state  {state=held} 1
leasefence.session.state  {state=jeopardy} 0
leasefence.session.state  {state=lost} 0`
		require.Equal(t, `leasefence.acquisition.duration s {kind=lock} 0 in 1
leasefence.acquisitions {acquisition} {kind=lock outcome=granted} 1
leasefence.acquisitions {acquisition} {kind=lock outcome=locked} 1
leasefence.acquisitions_waiting {acquisition} {kind=read_lock} 1
leasefence.locks_held {lock} {kind=lock} 1
`+state, p.metrics(t))

		require.ErrorIs(t, <-waits, context.DeadlineExceeded)
		require.NoError(t, a.Unlock(ctx))
		b, err := s.Lock(ctx, "b")
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = srv.Client(t).Delete(ctx, b.Key())
		require.NoError(t, err)
		require.Equal(t, `leasefence.acquisition.duration s {kind=lock} 0 in 2
leasefence.acquisitions {acquisition} {kind=lock outcome=granted} 2
leasefence.acquisitions {acquisition} {kind=lock outcome=locked} 1
leasefence.acquisitions {acquisition} {kind=read_lock outcome=canceled} 1
leasefence.acquisitions_waiting {acquisition} {kind=read_lock} 0
leasefence.lock.held s {kind=lock} 5 in 2
leasefence.locks_held {lock} {kind=lock} 0
leasefence.losses {lock} {kind=lock reason=key_deleted} 1
`+state, strings.ReplaceAll(p.metrics(t), "leasefence.cleanup.keys {key} {} 0\n", ""))
	})
}

func TestTelemetry_metricsOfTheLeaseAndElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess()
		opts := p.options()
		opts.Attributes = []attribute.KeyValue{attribute.String("session", "one")}
		s := hooked(t, leasetest.New(t), opts)
		l, err := election.Campaign(t.Context(), s.Session, "leader", election.Options{})
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		const acquired = `leader_election_master_status  {name=leader session=one} 1
leader_election_slowpath_total {renewal} {name=leader session=one} 0
leasefence.acquisition.duration s {kind=leadership session=one} 0 in 1
leasefence.acquisitions {acquisition} {kind=leadership outcome=granted session=one} 1
leasefence.locks_held {lock} {kind=leadership session=one} 1
`
		const renewed = `leasefence.renewal.attempts {attempt} {session=one} 1
leasefence.renewal.duration s {session=one} 0 in 1
leasefence.renewal.left s {session=one} `
		require.Contains(t, p.metrics(t), acquired+renewed)
		s.Partition()
		time.Sleep(17 * time.Second)
		require.Contains(t, p.metrics(t), "leasefence.session.state  {session=one state=jeopardy} 1")
		s.Heal()
		time.Sleep(time.Second)
		require.Contains(t, p.metrics(t), "leader_election_slowpath_total {renewal} {name=leader session=one} 1")

		s.Partition()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Lock(short, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Contains(t, p.metrics(t), "leasefence.cleanup.keys {key} {session=one} 1")
		require.NoError(t, s.Expire(t.Context()))
		<-l.Context().Done()
		time.Sleep(time.Hour)
		got := p.metrics(t)
		for _, want := range []string{
			"leader_election_master_status  {name=leader session=one} 0", "leasefence.cleanup.keys {key} {session=one} 0",
			"leasefence.session.state  {session=one state=held} 0", "leasefence.session.state  {session=one state=lost} 1",
			"leasefence.losses {lock} {kind=leadership reason=deadline_passed session=one} 1",
		} {
			require.Contains(t, got, want)
		}
	})
}

// A candidate that does not lead is reported with 0. The next leadership may be won before the end of the last is
// reported, and a lost lease may have keys to delete beside those of the next lease.
func TestTelemetry_metricsOfWhatOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess()
		telemetry, err := leaseotel.New(p.options())
		require.NoError(t, err)
		h := telemetry.Hooks()
		requireElection := func(leads, slow int) {
			t.Helper()
			require.Contains(t, p.metrics(t), fmt.Sprintf(`leader_election_master_status  {name=x} %d
leader_election_slowpath_total {renewal} {name=x} %d`, leads, slow))
		}
		hold := lease.Hold{Acquisition: lease.Acquisition{Kind: lease.KindLeadership, Names: []string{"x"}}}
		hold.Token = 54
		campaign := func() context.Context { return h.AcquireStart(t.Context(), hold.Acquisition) }
		first, second := campaign(), campaign()
		h.Renewed(lease.Renewal{Attempts: 2})
		requireElection(0, 0)
		h.AcquireEnd(first, hold.Acquisition, hold.Acquired)
		h.AcquireEnd(second, hold.Acquisition, hold.Acquired)
		h.Renewed(lease.Renewal{Attempts: 2})
		requireElection(1, 1)
		h.Lost(first, hold, &lease.LostError{})
		requireElection(1, 1)
		h.Released(second, hold, nil)
		requireElection(0, 1)

		h.CleanUp(1, 3)
		h.CleanUp(2, 4)
		require.Contains(t, p.metrics(t), "leasefence.cleanup.keys {key} {} 7")
		h.CleanUp(1, 0)
		require.Contains(t, p.metrics(t), "leasefence.cleanup.keys {key} {} 4")
		require.Contains(t, p.metrics(t), "{kind=leadership reason=other} 1")
	})
}

// Telemetry works beside other hooks. With a noop meter provider it makes spans only.
func TestTelemetry_besideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, calls := newProcess(), 0
		opts := p.options()
		opts.MeterProvider = noop.NewMeterProvider()
		telemetry, err := leaseotel.New(opts)
		require.NoError(t, err)
		other := &lease.Hooks{
			AcquireStart: func(ctx context.Context, _ lease.Acquisition) context.Context { return ctx },
			Released:     func(context.Context, lease.Hold, error) { calls++ },
		}
		s := leasetest.New(t).Session(t, lease.Options{Hooks: lease.JoinHooks(telemetry.Hooks(), other)})
		require.NoError(t, s.Do(t.Context(), "a", func(context.Context, fence.Token) error { return nil }))
		require.Len(t, p.ended(), 2)
		require.Equal(t, 1, calls)
		require.Empty(t, p.metrics(t))
	})
}

func TestResources(t *testing.T) {
	synctest.Test(t, testResources)
}

func testResources(t *testing.T) {
	p := newProcess()
	r, err := leaseotel.NewResources(leaseotel.ResourceOptions{
		MeterProvider: p.meters,
		Resource:      func(a fence.Access) string { return a.Resource },
		SpanResource:  func(a fence.Access) string { return "the " + a.Resource },
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
	require.ErrorIs(t, g.Check("orders", 0), fence.ErrInvalidToken)
	require.Equal(t, `leasefence.tokens {token} {mode=read outcome=stale resource=orders} 1
leasefence.tokens {token} {mode=write outcome=accepted resource=accounts} 1
leasefence.tokens {token} {mode=write outcome=accepted resource=orders} 2
leasefence.tokens {token} {mode=write outcome=other_lock resource=accounts} 1
leasefence.tokens {token} {mode=write outcome=stale resource=orders} 1`, p.metrics(t))

	spans := p.exporter.GetSpans()
	require.Len(t, spans, 2)
	require.Equal(t, "53", value(spans[0], "leasefence.token"))
	require.Empty(t, value(spans[0], "leasefence.grant"), "the context does not name the lock")
	require.Empty(t, spans[0].Links)
	require.Len(t, spans[0].Events, 1)
	require.Equal(t, " {highest=54 mode=read outcome=stale resource=the orders}", attributes(spans[0].Events[0].Attributes))
	require.Len(t, spans[1].Links, 1)
	require.Equal(t, leaseotel.Link("/orders", 90).SpanContext, spans[1].Links[0].SpanContext)
	require.Equal(t, " {mode=write outcome=other_lock resource=the accounts}", attributes(spans[1].Events[0].Attributes))
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

// BenchmarkTelemetry measures the hooks of one lock and its unlock.
func BenchmarkTelemetry(b *testing.B) {
	for name, opts := range map[string]leaseotel.Options{
		"all":         {MeterProvider: newProcess().meters, TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(toNowhere{}))},
		"not sampled": {MeterProvider: newProcess().meters, TracerProvider: newProcess(sdktrace.WithSampler(&never{})).tracers},
		"no SDK":      {MeterProvider: noop.NewMeterProvider(), TracerProvider: nooptrace.NewTracerProvider()},
	} {
		b.Run(name, func(b *testing.B) { benchmark(b, opts) })
	}
}

func benchmark(b *testing.B, opts leaseotel.Options) {
	b.Helper()
	telemetry, err := leaseotel.New(opts)
	require.NoError(b, err)
	h := telemetry.Hooks()
	a := lease.Acquisition{Kind: lease.KindLock, Names: []string{"orders"}}
	hold := lease.Hold{Acquisition: a, Acquired: lease.Acquired{Token: 54, Locks: a.Names, Key: "orders/1"}}
	b.ReportAllocs()
	for b.Loop() {
		ctx := h.AcquireStart(b.Context(), a)
		h.AcquireEnd(ctx, a, hold.Acquired)
		h.Released(ctx, hold, nil)
	}
}
