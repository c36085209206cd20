package rig

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
)

// Observer observes an election in a goroutine and records the leaders that it is shown.
type Observer struct {
	ended chan struct{} // closed when the iteration has ended
	err   error         // set before ended is closed
	taken int           // how many of seen Sees has checked

	mu   sync.Mutex // guards the field below
	seen []election.Leader
}

// Observe observes until the test ends.
func Observe(tb testing.TB, client *clientv3.Client, name string) *Observer {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	o := &Observer{ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		for l, err := range election.Observe(ctx, client, name) {
			if o.err = err; err != nil {
				continue // an error must be the last value
			}
			o.mu.Lock()
			o.seen = append(o.seen, l)
			o.mu.Unlock()
		}
	}()
	tb.Cleanup(func() {
		cancel()
		<-o.ended
	})
	return o
}

// all returns all leaders that have been shown.
func (o *Observer) all() []election.Leader {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.seen)
}

// Sees waits until as many more leaders have been shown as are wanted, and compares them, in order.
func (o *Observer) Sees(tb testing.TB, want ...election.Leader) {
	tb.Helper()
	var seen []election.Leader
	Eventually(tb, func() bool {
		seen = o.all()[o.taken:]
		return len(seen) >= len(want)
	}, func() string { return fmt.Sprintf("not all changes are shown: %v", seen) })
	require.Equal(tb, want, seen[:len(want)])
	o.taken += len(want)
}

// SeesNoMore checks that no leader has been shown beyond those that Sees has checked.
func (o *Observer) SeesNoMore(tb testing.TB) {
	tb.Helper()
	require.Empty(tb, o.all()[o.taken:])
}

// AwaitValue waits until the last leader shown has the value, and returns that leader. The value "" means no leader.
func (o *Observer) AwaitValue(tb testing.TB, value string) election.Leader {
	tb.Helper()
	var seen []election.Leader
	Eventually(tb, func() bool {
		seen = o.all()
		return len(seen) > 0 && seen[len(seen)-1].Value == value
	}, func() string { return "no leader is shown with the value " + value })
	return seen[len(seen)-1]
}

// AwaitEnd waits for the end of the iteration and returns its error.
func (o *Observer) AwaitEnd(tb testing.TB) error {
	tb.Helper()
	Await(tb, o.ended, "the iteration goes on")
	return o.err
}
