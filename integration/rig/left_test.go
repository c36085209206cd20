package rig

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
)

// goroutines lists those that run the library's code and were started after Label.
func TestGoroutines(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	run := func() {
		var b etcd.Backoff
		for b.Sleep(ctx) == nil {
			continue
		}
	}
	wg.Go(run) // before Label
	Label(t)
	wg.Go(run)
	wg.Go(func() { <-ctx.Done() }) // does not run the library's code
	Eventually(t, func() bool { return len(goroutines(t)) == 1 }, func() string { return "the goroutine is not found" })
	cancel()
	wg.Wait()
	require.Empty(t, goroutines(t))
}
