//go:build unix

package main

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
	"github.com/leasefence/leasefence/examples/internal/stage"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// The demo checks its scenes itself. Every leader has a larger token than the one before it, and a leader that hands over
// or stops does not let the others wait for its lease.
func TestDemo_movesTheLead(t *testing.T) {
	status, text := exampletest.Run(t, nil)
	require.Zero(t, status)
	last := 0
	for _, m := range regexp.MustCompile(`INFO leads token=(\d+)`).FindAllStringSubmatch(text, -1) {
		token, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.Greater(t, token, last)
		last = token
	}
	for _, how := range []string{"was asked", "was told to stop"} {
		took := regexp.MustCompile(`leads (\S+) after . ` + how).FindStringSubmatch(text)
		require.NotNil(t, took, how)
		d, err := time.ParseDuration(took[1])
		require.NoError(t, err)
		require.Less(t, d, stage.TTL*3/4, "%s: waited until the lease expired", how)
	}
	exampletest.RequireInOrder(t, text, `was killed$`, `was paused$`, `has lost the lead`, `was asked$`, `was told to stop$`, `^The ledger\n    #1 `)
}
