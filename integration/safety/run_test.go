package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/mix"
)

// passing is a report that reaches all floors.
func passing() *mix.Report {
	r := &mix.Report{Faults: map[string]mix.Struck{}}
	for _, f := range mix.Floors() {
		*f.Of(&r.Counts) = f.Least
	}
	for _, kind := range mix.AllKinds() {
		r.Faults[kind] = mix.Struck{Fired: 1}
	}
	return r
}

func TestVerdict_passesAndLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
	var out bytes.Buffer
	require.NoError(t, verdict(&out, passing(), mix.Options{Dir: dir}, mix.Floors()))
	require.Contains(t, out.String(), "passed")
	require.NoDirExists(t, dir)
}

func TestVerdict_keepsWhatWasAskedFor(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, verdict(&bytes.Buffer{}, passing(), mix.Options{Dir: dir, KeepAll: true}, mix.Floors()))
	require.DirExists(t, dir)
}

func TestVerdict_failsAndTellsWhereToLook(t *testing.T) {
	r := passing()
	r.Violations = []mix.Violation{{Invariant: "I3"}}
	r.Histories = []string{"some/history.jsonl"}
	dir := t.TempDir()
	var out bytes.Buffer
	err := verdict(&out, r, mix.Options{Dir: dir}, nil)
	require.ErrorIs(t, err, errFailed)
	require.Equal(t, 1, code(err))
	require.DirExists(t, dir)
	require.Contains(t, out.String(), "./safety check some/history.jsonl")
	require.Contains(t, out.String(), "./safety trace some/history.jsonl")
}

func TestVerdict_floorsAreThoseOfAShortRun(t *testing.T) {
	r := passing()
	r.Counts.Writes = 10
	var out bytes.Buffer
	require.ErrorIs(t, verdict(&out, r, mix.Options{Dir: t.TempDir()}, mix.Floors()), errFailed)
	require.Contains(t, out.String(), "too little: fenced writes")
	require.NoError(t, verdict(&out, r, mix.Options{Dir: t.TempDir()}, nil))
}

func TestVerdict_failsWhereTheControlShowsNothing(t *testing.T) {
	r := passing()
	r.Counts.ControlStale = 0
	for name, floors := range map[string][]mix.Floor{"run": mix.Floors(), "soak": nil} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.ErrorIs(t, verdict(&out, r, mix.Options{Dir: t.TempDir()}, floors), errFailed)
			require.Contains(t, out.String(), "unfenced control")
		})
	}
}

func TestRunMix_refusesArguments(t *testing.T) {
	require.ErrorIs(t, runRun([]string{"now"}, &bytes.Buffer{}), errUsage)
	require.Error(t, runSoak([]string{"-duration", "long"}, &bytes.Buffer{}))
	require.ErrorContains(t, runSoak([]string{"-ttl", "1s", "-o", t.TempDir()}, &bytes.Buffer{}), "Options.TTL")
}
