package etcd

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// If other goroutines compute on all processors, each yield takes long, so gather yields only a few times.
func TestLine_gather_whereOthersCompute(t *testing.T) {
	var over atomic.Bool
	defer over.Store(true)
	var rounds atomic.Int64
	var started, ended sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		started.Add(1)
		ended.Go(func() {
			for started.Done(); !over.Load(); {
				rounds.Add(1)
			}
		})
	}
	started.Wait()
	l := NewLine(nil, LineOptions{})
	for range 4 {
		require.Less(t, l.gather(8), yields/4)
	}
	over.Store(true)
	ended.Wait()
}

// gather waits while transactions keep coming, even for longer in all than it waits for none.
func TestLine_gather_whileTheyKeepComing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // then the two yield in turn
	synctest.Test(t, func(t *testing.T) {
		l := NewLine(nil, LineOptions{})
		go func() {
			for range 8 {
				for range yields / 2 {
					runtime.Gosched()
				}
				l.mu.Lock()
				l.waiting = append(l.waiting, new(caller))
				l.mu.Unlock()
			}
		}()
		require.Greater(t, l.gather(8), 2*yields)
		require.Len(t, l.waiting, 8)
	})
}
