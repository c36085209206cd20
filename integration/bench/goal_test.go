package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoal_judges(t *testing.T) {
	r := &result{
		Ours: figures{P50: 3, PerSecond: 9950, Extra: map[string]float64{"heap": 2048}}, Theirs: &figures{},
		Ratios: &ratios{Rate: 4, P50: 1.06, P99: 1}, Floor: &floorFigures{Acquire: 1, Release: 0.9},
	}
	alone := &result{Ours: r.Ours}
	for name, tt := range map[string]struct {
		goal   goal
		result *result
		want   string
	}{
		"rate at the limit":     {rate(4, "pairs"), r, "met"},
		"rate below":            {rate(4.1, "pairs"), r, "missed"},
		"rate without a peer":   {rate(4, "pairs"), alone, "no figures"},
		"median above":          {medianOf(1.05), r, "missed"},
		"median below":          {medianOf(1.1), r, "met"},
		"tail at the limit":     {tailNoWorse(), r, "met"},
		"above the floor":       {medianNearFloor(1), r, "missed"},
		"near the floor":        {medianNearFloor(2), r, "met"},
		"no floor":              {medianNearFloor(1), alone, "no figures"},
		"extra at the limit":    {extra("heap", 2048), r, "met"},
		"extra above":           {extra("heap", 2047), r, "missed"},
		"extra that is not":     {extra("other", 1), r, "no figures"},
		"reference, at least":   {reference("", func(f figures) float64 { return f.PerSecond }, 9900, false), r, "met"},
		"reference, at most":    {reference("", func(f figures) float64 { return f.P50 }, 2, true), r, "missed"},
		"bound to another line": {rate(4, "pairs").on("release"), r, "met"},
	} {
		require.Equal(t, tt.want, tt.goal.judge(tt.result).verdict(), name)
	}
}

func TestGoal_inTheChart(t *testing.T) {
	r := &result{Ours: figures{}, Theirs: &figures{}, Ratios: &ratios{Rate: 1, P50: 1}}
	require.InDelta(t, 4.0, rate(4, "pairs").judge(r).factor, 1e-9)
	require.InDelta(t, 0.5, medianOf(2).judge(r).factor, 1e-9)
	require.Zero(t, tailNoWorse().judge(r).factor)
}
