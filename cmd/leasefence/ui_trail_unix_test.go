//go:build unix

package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pipe, as a shell's <(psql ...), is read once: it is empty afterwards.
func TestTrail_readsAPipeOnce(t *testing.T) {
	from, to, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = from.Close() }()
	_, err = to.WriteString(`{"key":"a","token":7,"granted_at":"2026-11-23 17:07:33"}`)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	l, err := newTrail(fmt.Sprintf("/dev/fd/%d", from.Fd()))
	require.NoError(t, err)
	l.follow(t.Context()) // it does not wait for changes
	require.Len(t, l.of("a", nil).Rows, 1)
}
