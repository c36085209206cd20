package mix_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRun_noticesARestore(t *testing.T) {
	opts := small(t, time.Second)
	opts.Restore = true
	r := run(t, opts)
	require.Empty(t, r.Violations)
	require.Empty(t, r.Histories)
	require.Equal(t, 1, r.Counts.Restores, "%+v", r.Restored)
	require.Zero(t, r.Restored.Lower)
	require.Positive(t, r.Restored.Refused)
}

func TestRun_findsAResourceThatForgetsItsMarksInARestore(t *testing.T) {
	opts := small(t, time.Second)
	opts.Restore, opts.Saboteur.ForgetMarks = true, true
	r := run(t, opts)
	requireViolated(t, r, "I9")
	require.Positive(t, r.Restored.Lower)
}
