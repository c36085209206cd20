package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/mix"
)

// passing is the report of a long run that passes.
func passing() *mix.Report { return &mix.Report{Counts: mix.Counts{ControlStale: 1}} }

func TestVerdict_passesAndRemovesTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
	var out bytes.Buffer
	require.NoError(t, verdict(&out, passing(), mix.Options{Dir: dir}, nil))
	require.Contains(t, out.String(), "passed")
	require.NoDirExists(t, dir)
}

func TestVerdict_keepsTheFolderThatWasAskedFor(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, verdict(&bytes.Buffer{}, passing(), mix.Options{Dir: dir, KeepAll: true}, nil))
	require.DirExists(t, dir)
}

func TestVerdict_failsOnAViolationAndPrintsCommands(t *testing.T) {
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

func TestVerdict_failsBelowAFloor(t *testing.T) {
	r := passing()
	var out bytes.Buffer
	require.ErrorIs(t, verdict(&out, r, mix.Options{Dir: t.TempDir()}, mix.Floors()), errFailed)
	require.Contains(t, out.String(), "too little: fenced writes")
	require.NoError(t, verdict(&out, r, mix.Options{Dir: t.TempDir()}, nil))
}

func TestVerdict_failsIfTheControlTookNoStaleWrite(t *testing.T) {
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
