package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTicks(t *testing.T) {
	require.InDeltaSlice(t, []float64{0.5, 1, 2, 5, 10, 20}, ticks(0.4, 40), 1e-9)
}

func TestSVG_isXMLWhateverTheLabels(t *testing.T) {
	text := svg(`<"title" & more>`, []bar{{label: "a < b", factor: 0.1}, {label: "c", factor: 40, goal: 25}})
	requireXML(t, text)
	require.Contains(t, string(text), "a &lt; b")
	require.Contains(t, string(text), "40.0x")
}

func TestBars(t *testing.T) {
	peer := &figures{P50: 2, Mean: 8}
	all := bars([]*result{
		{Scenario: "alone"},
		{Scenario: "fast", Latency: "turn", Theirs: peer, Ratios: &ratios{Rate: 30}, Goals: []outcome{{factor: 25}}},
		{Scenario: "slow", Latency: "pair", Theirs: peer, Ours: figures{P50: 4}, Ratios: &ratios{Rate: 1}, charted: chartMedian},
		{
			Scenario: "late", Line: "x", Members: 3, Latency: "hand-over", Theirs: peer, Ours: figures{Mean: 2},
			Ratios: &ratios{Rate: 1}, charted: chartMean,
		},
	})
	require.Equal(t, []bar{
		{label: "fast: turns/s", factor: 30, goal: 25},
		{label: "slow: median pair", factor: 0.5},
		{label: "late, x (3 members): mean hand-over", factor: 4},
	}, all)
}
