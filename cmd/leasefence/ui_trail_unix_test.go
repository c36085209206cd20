//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
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
	l.stat = timeless{l.stat}
	l.refresh()
	require.Len(t, l.rows, 1)
}

// While the file is read, however long that takes, the page gets the rows that were read before.
func TestTrail_showsRowsWhileItReads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trail")
	require.NoError(t, os.WriteFile(file, []byte(`{"key":"a","token":7,"granted_at":"2026-11-23 17:07:33"}`), 0o600))
	l, err := newTrail(file)
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	read := make(chan struct{})
	go func() { defer close(read); l.refresh() }()
	var writer *os.File
	require.Eventually(t, func() bool {
		writer, err = os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0) // fails until refresh reads
		return err == nil
	}, time.Minute, time.Millisecond)
	shown := make(chan int, 1)
	go func() { shown <- len(l.of("a", nil).Rows) }()
	select {
	case n := <-shown:
		require.Equal(t, 1, n)
	case <-time.After(5 * time.Second):
		t.Error("the rows are not shown")
	}
	require.NoError(t, writer.Close())
	<-read
}

// timeless is the state of a file with another time than the file has now: refresh would read it again.
type timeless struct{ os.FileInfo }

func (timeless) ModTime() time.Time { return time.Time{} }
