package leaseprom_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert/yaml"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leaseprom"
)

// Metrics of the session have no label for the lock; one without any label is there from the beginning.
func TestMetrics_ofASession(t *testing.T) {
	for locks, label := range map[string]func(lease.Acquisition) string{
		`leasefence_locks_held{kind="lock"} 2`: nil,
		`leasefence_locks_held{kind="lock",lock="gr�"} 2`: func(a lease.Acquisition) string {
			return a.Names[0][:3] // may cut a character in two
		},
	} {
		m, err := leaseprom.New(leaseprom.Options{Lock: label, Buckets: []float64{1, 2}})
		require.NoError(t, err)
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(m))
		h, a := m.Hooks(), lease.Acquisition{Kind: lease.KindLock, Names: []string{"größe"}}
		h.Renewed(lease.Renewal{RoundTrip: 1500 * time.Millisecond})
		for range 2 {
			h.StateChanged(lease.Status{State: lease.StateHeld})
			h.AcquireEnd(t.Context(), a, lease.Acquired{})
		}
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP leasefence_cleanup_keys Keys that are to be deleted in the background.
# TYPE leasefence_cleanup_keys gauge
leasefence_cleanup_keys 0
# HELP leasefence_locks_held Locks that are held now.
# TYPE leasefence_locks_held gauge
`+locks+`
# HELP leasefence_renewal_duration_seconds Round trips of the lease's renewals.
# TYPE leasefence_renewal_duration_seconds histogram
leasefence_renewal_duration_seconds_bucket{le="1"} 0
leasefence_renewal_duration_seconds_bucket{le="2"} 1
leasefence_renewal_duration_seconds_bucket{le="+Inf"} 1
leasefence_renewal_duration_seconds_sum 1.5
leasefence_renewal_duration_seconds_count 1
# HELP leasefence_session_state 1 for the state of the session's lease, 0 for the others.
# TYPE leasefence_session_state gauge
leasefence_session_state{state="held"} 1
leasefence_session_state{state="jeopardy"} 0
leasefence_session_state{state="lost"} 0
`), "leasefence_cleanup_keys", "leasefence_locks_held", "leasefence_renewal_duration_seconds", "leasefence_session_state"))
	}
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
