package main

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// smoked are scenarios of each kind, with the commits of their bare programs per operation.
var smoked = map[string]float64{
	"turns2": 2, "handover5ms": 2, "goroutines64": 1, "uncontended": 2, "own16": 2.0 / 16, "own256": 2.0 / groupOps,
	"hold50000": 1.0 / groupOps, "resign5ms": 2,
}

// Every kind of scenario works, and its bare program uses as many requests and commits as it claims.
func TestRun_givesFiguresForEachScenario(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "chart.svg")
	o, err := parse([]string{"-short", "-svg", chart}, io.Discard)
	require.NoError(t, err)
	o.scale = scale{
		rounds: 1, warmUp: 20 * time.Millisecond, lasting: 150 * time.Millisecond, leastTurns: 3,
		holds: 12 * groupOps, holdTTL: sessionTTL, holding: 2 * time.Second,
	}
	all := o.chosen
	o.chosen = nil
	for _, sc := range all {
		if smoked[sc.name] > 0 {
			o.chosen = append(o.chosen, sc)
		}
	}
	require.Len(t, o.chosen, len(smoked))
	var out bytes.Buffer
	d := &disk{dir: t.TempDir()}
	o.disks = []*disk{d}
	require.NoError(t, o.run(t.Context(), table{bufio.NewWriter(io.MultiWriter(&out, t.Output()))}))
	require.Len(t, d.results, len(smoked)+1, "hold50000 has two lines")
	for _, r := range d.results {
		for who := range roles {
			require.Len(t, r.rounds[who], max(r.blocks, 1), r.name)
		}
		for _, c := range r.comparisons() {
			require.Positive(t, c.least, "%s: %s", r.name, c.name)
		}
		bare := summarize(r.rounds[limit])
		require.InEpsilon(t, smoked[r.name], bare.cost[commits], 0.2, "%s: commits of the bare program", r.name)
		require.InEpsilon(t, smoked[r.name], bare.cost[requests], 0.2, "%s: requests of the bare program", r.name)
		require.Contains(t, out.String(), "| "+r.title(r.what)+" | ")
	}
	text, err := os.ReadFile(chart)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(text, new(struct{})))
	require.Contains(t, string(text), "2 clients take turns: turns/s")
}

func TestRun_putsFoldersSideBySide(t *testing.T) {
	slow, fast := t.TempDir(), t.TempDir()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-short", "-scenarios", "^goroutines64$", "-dir", slow, "-dir", fast}, &out))
	require.Regexp(t, `\| 64 goroutines take turns \| \d+ % / \d+ % \| [\d.]+ x / [\d.]+ x \|`, out.String())
	require.Regexp(t, regexp.QuoteMeta(slow)+`, a commit takes [\d.]+ ms: goals met: 0 of 0\n`+regexp.QuoteMeta(fast), out.String())
}

// turn returns a round of one second with ops operations and two latencies.
func turn(ops, ms1, ms2 int) sample {
	return sample{ops: ops, elapsed: time.Second, latencies: []time.Duration{
		time.Duration(ms1) * time.Millisecond, time.Duration(ms2) * time.Millisecond,
	}}
}

// Contenders are compared within each round, so that a machine which is slow for one round changes little.
func TestResult_comparesWithinRounds(t *testing.T) {
	r := &result{scenario: &scenario{leastShare: 0.5}}
	r.rounds = [roles][]sample{
		ours:  {turn(60, 2, 8), turn(6, 20, 80), turn(45, 2, 8), turn(70, 2, 8)},
		limit: {turn(100, 1, 4), turn(10, 10, 10), turn(100, 1, 1), turn(100, 1, 1)},
		peer:  {turn(30, 4, 46), turn(3, 40, 460), turn(15, 4, 46), turn(35, 4, 46)},
	}
	requireMiddles := func(by figure, share, times float64) {
		r.by = by
		c := r.comparisons()
		require.InDelta(t, share, c[0].middle, 1e-9)
		require.InDelta(t, times, c[1].middle, 1e-9)
	}
	requireMiddles(byRate, 0.6, 2)
	requireMiddles(byMean, 0.5, 5)
	requireMiddles(byMedian, 0.5, 2)
	share := r.comparisons()[0]
	require.Equal(t, []float64{0.5, 0.5}, []float64{share.least, share.most})
	require.Equal(t, "50 % (goal 50 %: met)", share.String())
	share.goal = 0.51
	require.Equal(t, "50 % (goal 51 %: missed)", share.String())
	require.Equal(t, "2.00 x", r.comparisons()[1].String())
}

func TestExclusive_seesAnOverlap(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	require.NoError(t, exclusive([]stay{{0, at(0), at(5)}, {1, at(5), at(9)}}))
	require.ErrorContains(t, exclusive([]stay{{0, at(0), at(5)}, {1, at(4), at(9)}}), "two held the lock at once")
}
