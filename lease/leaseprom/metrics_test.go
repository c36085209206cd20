package leaseprom_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert/yaml"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leaseprom"
	"github.com/leasefence/leasefence/lease/leasetest"
)

func hooked(t *testing.T, opts leaseprom.Options) (*leasetest.Server, *leasetest.Session, *prometheus.Registry) {
	t.Helper()
	m, err := leaseprom.New(opts)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	srv := leasetest.New(t)
	return srv, srv.Session(t, lease.Options{Hooks: m.Hooks()}), registry
}

// requireMetrics checks the values of the metrics called names.
func requireMetrics(t *testing.T, registry *prometheus.Registry, want string, names ...string) {
	t.Helper()
	synctest.Wait()
	families, err := registry.Gather()
	require.NoError(t, err)
	var got []string
	for _, f := range families {
		if !slices.Contains(names, f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			text := strings.TrimPrefix(f.GetName(), "leasefence_") + "{" + strings.Join(labels, ",") + "} "
			switch {
			case m.GetHistogram() != nil:
				h := m.GetHistogram()
				text += fmt.Sprintf("%.3gs in %d", h.GetSampleSum(), h.GetSampleCount())
			case m.GetGauge() != nil:
				text += fmt.Sprint(m.GetGauge().GetValue())
			default:
				text += fmt.Sprint(m.GetCounter().GetValue())
			}
			got = append(got, text)
		}
	}
	require.Equal(t, want, strings.Join(got, "\n"))
}

func TestMetrics_ofLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, s, registry := hooked(t, leaseprom.Options{})
		ctx := t.Context()
		names := []string{
			"leasefence_acquisitions_total", "leasefence_acquisitions_waiting", "leasefence_acquisition_duration_seconds",
			"leasefence_locks_held", "leasefence_lock_held_seconds", "leasefence_losses_total",
		}
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
		requireMetrics(t, registry, `acquisition_duration_seconds{lock} 0s in 1
acquisitions_total{lock,granted} 1
acquisitions_total{lock,locked} 1
acquisitions_waiting{read_lock} 1
locks_held{lock} 1`, names...)

		require.ErrorIs(t, <-waits, context.DeadlineExceeded)
		require.NoError(t, a.Unlock(ctx))
		b, err := s.Lock(ctx, "b")
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = srv.Client(t).Delete(ctx, b.Key())
		require.NoError(t, err)
		requireMetrics(t, registry, `acquisition_duration_seconds{lock} 0s in 2
acquisitions_total{lock,granted} 2
acquisitions_total{lock,locked} 1
acquisitions_total{read_lock,canceled} 1
acquisitions_waiting{read_lock} 0
lock_held_seconds{lock} 5s in 2
locks_held{lock} 0
losses_total{lock,key_deleted} 1`, names...)
	})
}

// Metrics of the session have no such label; one without any label is there from the beginning.
func TestMetrics_withALabelForTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, registry := hooked(t, leaseprom.Options{Lock: func(a lease.Acquisition) string {
			return a.Names[0][:3] // may cut a character in two
		}})
		for _, name := range []string{"jobs/1", "jobs/2", "größe"} {
			require.NoError(t, s.Do(t.Context(), name, func(context.Context, fence.Token) error { return nil }))
		}
		requireMetrics(t, registry, `cleanup_keys{} 0
locks_held{lock,gr�} 0
locks_held{lock,job} 0
session_state{held} 1
session_state{jeopardy} 0
session_state{lost} 0`, "leasefence_cleanup_keys", "leasefence_locks_held", "leasefence_session_state")
	})
}

func TestResources(t *testing.T) {
	r := leaseprom.NewResources(leaseprom.ResourceOptions{Resource: func(a fence.Access) string { return a.Resource }})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(r))
	g := fence.Guard{Hooks: r.Hooks()}
	require.NoError(t, g.Claim("orders", 41))
	require.NoError(t, g.Do("orders", 54, func() error { return nil }))
	require.ErrorIs(t, g.Check("orders", 41), fence.ErrStale)
	require.ErrorIs(t, g.CheckRead("orders", 53), fence.ErrStale)
	require.NoError(t, g.Move("accounts", 54, "/accounts"))
	other := fence.WithLock(fence.NewContext(t.Context(), 90), "/orders")
	require.ErrorIs(t, g.CheckContext(other, "accounts", 90), fence.ErrOtherLock)
	require.ErrorIs(t, g.Check("orders", 0), fence.ErrInvalidToken)
	require.NoError(t, g.Claim("orders\xff", 54), "a resource may have any name, a label not")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP leasefence_tokens_total Tokens that have come to resources.
# TYPE leasefence_tokens_total counter
leasefence_tokens_total{mode="read",outcome="stale",resource="orders"} 1
leasefence_tokens_total{mode="write",outcome="accepted",resource="accounts"} 1
leasefence_tokens_total{mode="write",outcome="accepted",resource="orders"} 2
leasefence_tokens_total{mode="write",outcome="accepted",resource="orders�"} 1
leasefence_tokens_total{mode="write",outcome="other_lock",resource="accounts"} 1
leasefence_tokens_total{mode="write",outcome="stale",resource="orders"} 1
`)))
}

func TestNew_input(t *testing.T) {
	for _, buckets := range [][]float64{{2, 1}, {1, 1}} {
		_, err := leaseprom.New(leaseprom.Options{Buckets: buckets})
		require.ErrorContains(t, err, "leaseprom: Options.Buckets is [")
	}
}

var metric = regexp.MustCompile(`\b(leasefence|leader_election)_[a-z_]+`)

// The dashboard and the rules use only metrics that exist, and promtool accepts the rules.
func TestFiles_fitTheMetrics(t *testing.T) {
	m, err := leaseprom.New(leaseprom.Options{})
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	leaseprom.NewResources(leaseprom.ResourceOptions{}).Describe(descs)
	close(descs)
	known := map[string]bool{}
	for d := range descs {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		known[name] = true
	}
	require.Len(t, known, 14)
	problems, err := testutil.CollectAndLint(m)
	require.NoError(t, err)
	require.Empty(t, problems)
	problems, err = testutil.CollectAndLint(leaseprom.NewResources(leaseprom.ResourceOptions{}))
	require.NoError(t, err)
	require.Empty(t, problems)
	for _, file := range []string{"dashboard.json", "alerts.yaml", "alerts_test.yaml", "metrics.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		asked := map[string]bool{}
		for _, name := range metric.FindAllString(string(text), -1) {
			name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			require.True(t, known[name], "%s uses %s", file, name)
			asked[name] = true
		}
		if file == "metrics.go" {
			require.Len(t, asked, len(known), "the package's documentation lists every metric")
		}
		switch filepath.Ext(file) {
		case ".json":
			require.True(t, json.Valid(text))
		case ".yaml":
			require.NoError(t, yaml.Unmarshal(text, new(any)), file) // not every machine has promtool
		}
	}
	if path, err := exec.LookPath("promtool"); err == nil {
		for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
			out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}
