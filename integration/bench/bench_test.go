package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// smokeScale is as little as gives a figure everywhere.
func smokeScale() scale {
	return scale{
		rounds: 1, warmUp: 20 * time.Millisecond, lasting: 150 * time.Millisecond, leastTurns: 3, floor: 5,
		holds: 300, holdTTL: 2 * time.Second, holdTTLs: 1,
		herd: 5, herdRepeats: 1, crashes: 2, quiet: 100 * time.Millisecond,
	}
}

// Every scenario has to work. Its figures mean nothing here.
func TestRun_givesFiguresForEachScenario(t *testing.T) {
	dir := t.TempDir()
	jsonFile, svgFile := filepath.Join(dir, "report.json"), filepath.Join(dir, "chart.svg")
	o, err := parse([]string{"-short", "-dir", dir, "-json", jsonFile, "-svg", svgFile}, io.Discard)
	require.NoError(t, err)
	o.scale = smokeScale()
	var out bytes.Buffer
	require.NoError(t, o.run(t.Context(), io.MultiWriter(&out, t.Output())))

	text, err := os.ReadFile(jsonFile)
	require.NoError(t, err)
	var rep report
	require.NoError(t, json.Unmarshal(text, &rep))
	require.True(t, rep.Short)
	chart, err := os.ReadFile(svgFile)
	require.NoError(t, err)
	requireXML(t, chart)

	of := map[string][]*result{}
	for _, r := range rep.Results {
		of[r.Scenario] = append(of[r.Scenario], r)
	}
	for _, sc := range scenarios() {
		results := of[sc.name]
		require.NotEmpty(t, results, sc.name)
		require.Contains(t, out.String(), sc.name)
		require.Contains(t, string(chart), sc.name)
		goals := 0
		for _, r := range results {
			requireFigures(t, r)
			goals += len(r.Goals)
			for _, o := range r.Goals {
				require.False(t, o.Missing, "%s: %s", sc.name, o.Goal)
			}
			if sc.floor {
				require.Positive(t, r.Floor.Acquire, sc.name)
				require.Positive(t, r.Floor.Release, sc.name)
			}
		}
		require.Len(t, sc.goals, goals, "%s: each goal is judged once", sc.name)
	}
	require.Len(t, rep.Results, len(scenarios())+3, "hold50000 has three lines and herd two")
}

func requireFigures(t *testing.T, r *result) {
	t.Helper()
	all := []figures{r.Ours}
	if r.Line == "close" {
		require.Nil(t, r.Theirs, "etcd's session has no such thing")
	} else {
		require.Positive(t, r.Ours.P50, "%s %s", r.Scenario, r.Line)
		require.NotNil(t, r.Theirs, "%s %s", r.Scenario, r.Line)
		all = append(all, *r.Theirs)
		require.Positive(t, r.Ratios.Rate, "%s %s", r.Scenario, r.Line)
		require.Positive(t, r.Ratios.P50, "%s %s", r.Scenario, r.Line)
	}
	for _, f := range all {
		require.Positive(t, f.Operations, "%s %s", r.Scenario, r.Line)
		require.Positive(t, f.PerSecond, "%s %s", r.Scenario, r.Line)
		require.LessOrEqual(t, f.P50, f.P90, "%s %s", r.Scenario, r.Line)
		require.LessOrEqual(t, f.P90, f.P99, "%s %s", r.Scenario, r.Line)
		require.LessOrEqual(t, f.P99, f.Max, "%s %s", r.Scenario, r.Line)
	}
}

func requireXML(t *testing.T, text []byte) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(text))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

// canceller ends a context as soon as the table has begun.
type canceller struct{ cancel context.CancelFunc }

func (c canceller) Write(text []byte) (int, error) {
	if strings.Contains(string(text), "scenario") {
		c.cancel()
	}
	return len(text), nil
}

func TestRun_endsWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := run(ctx, []string{"-short", "-scenarios", "clients8", "-dir", t.TempDir()}, canceller{cancel})
	require.ErrorIs(t, err, context.Canceled)
}

func TestRun_listsWithoutRunning(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-list", "-scenarios", "^own"}, &out))
	require.Contains(t, out.String(), "own256-session")
	require.Contains(t, out.String(), "at least 15x pairs/s")
	require.NotContains(t, out.String(), "turns2")
}

func TestRun_refusesWhatMakesNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"-scenarios", "("},
		{"-scenarios", "no such thing"},
		{"-rounds", "-1"},
		{"turns2"},
		{"-no-such-flag"},
	} {
		require.Error(t, run(t.Context(), args, io.Discard), args)
	}
}
