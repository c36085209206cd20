//go:build unix

package main

import (
	"fmt"
	"os"
	"testing"
	"time"

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
	l.looked, l.stat = time.Time{}, timeless{l.stat}
	l.refresh()
	require.Len(t, l.rows, 1)
}

// timeless is the state of a file with another time than the file has now: refresh would read it again.
type timeless struct{ os.FileInfo }

func (timeless) ModTime() time.Time { return time.Time{} }
