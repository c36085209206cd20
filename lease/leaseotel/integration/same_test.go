package integration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/internal/telemetry"
	"github.com/leasefence/leasefence/lease/leaseotel"
	"github.com/leasefence/leasefence/lease/leaseprom"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// A session and a resource have the hooks of both packages, and each outcome of a lock happens. The scraped metrics are
// the same, except for the exporter's own labels.
func TestMetrics_areThoseOfLeaseprom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

		srv := leasetest.New(t)
		s := srv.Session(t, lease.Options{Hooks: lease.JoinHooks(metrics.Hooks(), otel.Hooks())})
		everything(t, srv, s)
		for _, hooks := range []*fence.Hooks{resources.Hooks(), others.Hooks()} {
			g := fence.Guard{Hooks: hooks}
			require.NoError(t, g.Claim("orders", 54))
			require.ErrorIs(t, g.Check("orders", 41), fence.ErrStale)
			require.ErrorIs(t, g.CheckRead("orders", 53), fence.ErrStale)
			require.NoError(t, g.Move("orders", 55, "/orders"))
			other := fence.WithLock(fence.NewContext(t.Context(), 90), "/accounts")
			require.ErrorIs(t, g.CheckContext(other, "orders", 90), fence.ErrOtherLock)
		}
		synctest.Wait()
		scraped := scrape(t, want)
		require.Equal(t, scraped, scrape(t, got))
		for _, name := range named {
			require.Contains(t, scraped, name, "the test does not cause this")
		}
	})
}

// The exporter changes the names and units, so this compares them with the package's documentation.
func TestMetrics_areDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "doc.go"))
	require.NoError(t, err)
	for _, d := range telemetry.Definitions {
		require.Contains(t, string(doc), "//\t"+strings.TrimSpace(d.OpenTelemetry+" "+d.Unit)+"   ")
	}
}

var named = []string{
	`outcome="granted"`, `outcome="locked"`, `outcome="canceled"`, `outcome="lost"`, `outcome="closed"`,
	`reason="deadline_passed"`, `reason="key_deleted"`, `reason="session_closed"`, `kind="lock"`, `kind="read_lock"`,
	`kind="lock_set"`, `kind="tree_lock"`, `kind="permit"`, `kind="leadership"`,
}

// everything acquires and releases locks of each kind, loses some, and closes the session.
func everything(t *testing.T, srv *leasetest.Server, s *leasetest.Session) {
	t.Helper()
	ctx := t.Context()
	do := func(context.Context, fence.Token) error {
		time.Sleep(1500 * time.Millisecond)
		return nil
	}
	require.NoError(t, s.Do(ctx, "a", do))
	require.NoError(t, s.RDo(ctx, "b", func(ctx context.Context, _ fence.ReadToken) error { return do(ctx, 0) }))
	require.NoError(t, s.DoAll(ctx, []string{"c", "d"}, do))
	require.NoError(t, s.DoTree(ctx, "e/f", do))
	require.NoError(t, s.DoPermit(ctx, "g", 3, do))
	l, err := s.Lock(ctx, "h")
	require.NoError(t, err)
	_, err = s.TryLock(ctx, "h")
	require.ErrorIs(t, err, lease.ErrLocked)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = s.Lock(short, "h")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = srv.Client(t).Delete(ctx, l.Key())
	require.NoError(t, err)
	young, err := s.Lock(ctx, "young")
	require.NoError(t, err)
	_, err = srv.Client(t).Delete(ctx, young.Key())
	require.NoError(t, err)
	require.ErrorIs(t, young.Unlock(ctx), lease.ErrLost) // finds the loss
	leader, err := election.Campaign(ctx, s.Session, "leader", election.Options{})
	require.NoError(t, err)
	time.Sleep(20 * time.Second)
	s.Partition()
	time.Sleep(17 * time.Second)
	s.Heal()
	time.Sleep(time.Second)
	_, err = srv.Session(t, lease.Options{TTL: time.Hour}).Lock(ctx, "i")
	require.NoError(t, err)
	waits := make(chan error)
	go func() {
		_, err := s.Lock(ctx, "i")
		waits <- err
	}()
	synctest.Wait()
	require.NoError(t, s.Expire(ctx))
	<-leader.Context().Done()
	require.ErrorIs(t, <-waits, lease.ErrLost)
	_, err = s.Lock(ctx, "j")
	require.NoError(t, err)
	time.Sleep(15 * time.Second)
	require.NoError(t, s.Close(ctx))
	_, err = s.Lock(ctx, "k")
	require.ErrorIs(t, err, lease.ErrClosed)
}

// scrape returns a line for each series: its name, type, labels and value.
func scrape(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var lines []string
	for _, f := range families {
		if f.GetName() == "target_info" {
			continue
		}
		lines = append(lines, f.GetName()+": "+f.GetHelp())
		for _, m := range f.GetMetric() {
			labels := slices.DeleteFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return strings.HasPrefix(l.GetName(), "otel_scope_") })
			var texts []string
			for _, l := range labels {
				texts = append(texts, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			line := fmt.Sprintf("%v %s{%s} ", f.GetType(), f.GetName(), strings.Join(texts, ","))
			if h := m.GetHistogram(); h != nil {
				line += fmt.Sprintf("%.6g in %d", h.GetSampleSum(), h.GetSampleCount())
				for _, b := range h.GetBucket() {
					line += fmt.Sprintf(" %.6g:%d", b.GetUpperBound(), b.GetCumulativeCount())
				}
			} else {
				line += fmt.Sprintf("%.6g", m.GetGauge().GetValue()+m.GetCounter().GetValue())
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
