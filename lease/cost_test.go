package lease_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// If sessions take a lock in turns, a turn costs a request to enter and one to leave. Behind a waiter it costs one more
// read.
func TestSession_Lock_requestsATurn(t *testing.T) {
	for clients, most := range map[int]float64{2: 2.1, 3: 2.1, 8: 3.2, 32: 3.2} {
		inBubble(t, fmt.Sprint(clients), func(t *testing.T) {
			srv := newServer(t)
			var sessions []*env
			for range clients {
				e := open(t, srv, lease.Options{TTL: time.Hour})
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Millisecond, After: time.Millisecond / 2})
				e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Millisecond / 2})
				sessions = append(sessions, e)
			}
			sent := func() (n int) {
				for _, e := range sessions {
					n += len(e.c.Calls(fakeetcd.Any))
				}
				return n
			}
			rounds := func(n int) {
				var all sync.WaitGroup
				for _, e := range sessions {
					all.Go(func() {
						for range n {
							l, err := e.s.Lock(t.Context(), "a")
							if err != nil {
								t.Error(err)
								return
							}
							time.Sleep(time.Millisecond)
							if err := l.Unlock(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
			}
			rounds(3) // until each stands behind the same key again
			before := sent()
			const turns = 30
			rounds(turns)
			a := float64(sent()-before) / float64(turns*clients)
			t.Logf("%.2f requests a turn", a)
			require.LessOrEqual(t, a, most)
		})
	}
}
