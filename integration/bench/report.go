package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"go.etcd.io/etcd/api/v3/version"
)

// report is all that a run gives, and the form of its JSON. Latencies are in milliseconds.
type report struct {
	Started  time.Time `json:"started"`
	Go       string    `json:"go"`
	Etcd     string    `json:"etcd"`
	System   string    `json:"system"`
	CPUs     int       `json:"cpus"`
	Short    bool      `json:"short"`
	Separate bool      `json:"separate_commits"`
	Results  []*result `json:"results"`
}

// result is one line of one scenario.
type result struct {
	Scenario string        `json:"scenario"`
	Line     string        `json:"line,omitempty"`
	What     string        `json:"what"`
	Latency  string        `json:"latency"` // what the latencies are of
	Members  int           `json:"members"` // of the cluster
	Ours     figures       `json:"leasefence"`
	Peer     string        `json:"peer,omitempty"`
	Theirs   *figures      `json:"theirs"` // nil where only leasefence has such a thing
	Ratios   *ratios       `json:"ratios"`
	Floor    *floorFigures `json:"floor,omitempty"`
	Goals    []outcome     `json:"goals"`

	charted charted
}

// ratios are ours divided by theirs.
type ratios struct {
	Rate     float64 `json:"per_second"`
	Mean     float64 `json:"mean"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
	Requests float64 `json:"requests_per_operation"`
	Commits  float64 `json:"commits_per_operation"`
	Fsyncs   float64 `json:"fsyncs_per_operation"`
}

// floorFigures are the medians of the floor.
type floorFigures struct {
	Acquire float64 `json:"acquire_ms"`
	Release float64 `json:"release_ms"`
}

func newReport(short, separate bool) *report {
	return &report{
		Started: time.Now().UTC().Truncate(time.Second),
		Go:      runtime.Version(), Etcd: version.Version, System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
		Short: short, Separate: separate,
		Results: []*result{},
	}
}

func newRatios(ours, theirs figures) *ratios {
	return &ratios{
		Rate:     ratio(ours.PerSecond, theirs.PerSecond),
		Mean:     ratio(ours.Mean, theirs.Mean),
		P50:      ratio(ours.P50, theirs.P50),
		P99:      ratio(ours.P99, theirs.P99),
		Requests: ratio(ours.Requests, theirs.Requests),
		Commits:  ratio(ours.Commits, theirs.Commits),
		Fsyncs:   ratio(ours.Fsyncs, theirs.Fsyncs),
	}
}

// ratio is 0 where there is none.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (r *report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
