package history_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/history"
)

func TestRecorder_writesWhatReadFileReads(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "history"))
	require.NoError(t, err)
	r := history.NewRecorder(file, history.NewClock(), 100)
	full := history.Event{
		At: 1, Kind: history.Apply, Actor: "client 1/worker 2", Name: "n", Op: 2, Request: 3, Fault: 4, Token: 1<<60 + 1,
		Outcome: history.Unknown, Error: "e", Verb: history.Write, Value: "v\n", Highest: 1<<60 + 2, Key: "k", Revision: 5,
		Created: 6, Lease: 7, Target: "t",
	}
	r.Record(full)
	require.Equal(t, int64(101), r.ID())
	before := r.Now()
	r.Record(history.Event{Kind: history.Live, Op: r.ID()})
	after := r.Now()
	require.NoError(t, r.To(nil))
	require.NoError(t, file.Close())
	events, err := history.ReadFile(file.Name())
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, full, events[0])
	require.Equal(t, int64(102), events[1].Op)
	require.LessOrEqual(t, before, events[1].At)
	require.LessOrEqual(t, events[1].At, after)

	require.NoError(t, r.To(file))
	r.Record(full)
	require.ErrorIs(t, r.To(nil), os.ErrClosed)
	require.NoError(t, r.To(nil), "the error is that of the writer before")
}
