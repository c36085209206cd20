package logqueue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/logqueue"
)

// The handler gets what it would have got without a queue.
func TestQueue_isTransparent(t *testing.T) {
	var out bytes.Buffer
	var q *logqueue.Queue
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		log, queue := logqueue.New(slog.New(slog.NewJSONHandler(&out, nil)))
		q = queue
		return log.Handler()
	}, func(t *testing.T) map[string]any {
		t.Helper()
		q.Flush(t.Context())
		line := map[string]any{}
		require.NoError(t, json.Unmarshal(out.Bytes(), &line))
		return line
	})
}

// gate is a writer that blocks until it is opened.
type gate struct {
	bytes.Buffer

	open chan struct{}
}

func (g *gate) Write(line []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(line)
}

// Lines stay in order. Lines that find no room are counted, and the count is logged in their place.
func TestQueue_dropsWhatTheHandlerIsTooSlowFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := gate{open: make(chan struct{})}
		log, q := logqueue.New(slog.New(slog.NewTextHandler(&out, nil)))
		log.Info("m", "n", 0)
		synctest.Wait() // it is being written
		const room = 256
		for n := range room + 7 {
			log.With("n", n+1).Info("m")
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		q.Flush(ctx)
		require.Equal(t, time.Second, time.Since(began))
		close(out.open)
		q.Flush(t.Context())
		log.Info("m", "n", "last")
		q.Flush(t.Context())

		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 1+room+2)
		for n, line := range lines[:1+room] {
			require.Contains(t, line, fmt.Sprintf("msg=m n=%d", n))
		}
		require.Contains(t, lines[1+room], "dropped=7")
		require.Contains(t, lines[1+room], "level=WARN")
		require.Contains(t, lines[2+room], "n=last")
	})
}
