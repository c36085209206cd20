package rig

import (
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

// label is the key of the pprof label that marks a test's goroutines.
const label = "scenario"

// Label marks all goroutines that the test starts from now on, directly or not, including the library's, so that
// [CloseAll] ignores those of parallel tests. Call it before the test starts anything.
func Label(tb testing.TB) {
	tb.Helper()
	pprof.SetGoroutineLabels(pprof.WithLabels(tb.Context(), pprof.Labels(label, tb.Name())))
}

// goroutines lists the test's goroutines that run the library's code.
func goroutines(tb testing.TB) []string {
	tb.Helper()
	var text strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		tb.Fatalf("rig: %v", err)
	}
	const module = "github.com/leasefence/leasefence/"
	var found []string
	for stack := range strings.SplitSeq(text.String(), "\n\n") {
		if !strings.Contains(stack, fmt.Sprintf("%q:%q", label, tb.Name())) {
			continue
		}
		for _, folder := range []string{"lease.", "election.", "internal/"} {
			if strings.Contains(stack, module+folder) {
				found = append(found, stack)
				break
			}
		}
	}
	return found
}

// CloseAll closes all sessions of a test and fails the test if Close leaves anything: a lease, a key below one of the
// names, or a goroutine. The sessions must be able to reach their servers. CloseAll waits for leases that were lost
// before to expire. The client must have one endpoint only, so that all its reads show the view of one member.
func CloseAll(tb testing.TB, client *clientv3.Client, sessions []*lease.Session, names ...string) {
	tb.Helper()
	ctx := Bounded(tb)
	closed := make(map[clientv3.LeaseID]bool)
	for _, s := range sessions {
		if err := s.Close(ctx); err != nil {
			tb.Errorf("close: %v", err)
		}
		closed[s.Status().LeaseID] = true
	}
	for _, name := range names {
		for key, id := range keys(ctx, tb, client, name) {
			if closed[id] {
				tb.Errorf("%s is left after Close", key)
			}
		}
	}
	// The reads above were linearizable and went to the same member, so that member has applied the revocations.
	for _, id := range leases(ctx, tb, client) {
		if closed[id] {
			tb.Errorf("lease %x is left after Close", int64(id))
		}
	}
	Eventually(tb, func() bool { return len(goroutines(tb)) == 0 },
		func() string { return "goroutines are left: " + strings.Join(goroutines(tb), "\n\n") })
	requireNothingLeft(tb, client, names)
}

// requireNothingLeft waits until there is no lease and no key below any of the names.
func requireNothingLeft(tb testing.TB, client *clientv3.Client, names []string) {
	tb.Helper()
	ctx := Bounded(tb)
	var left []string
	Eventually(tb, func() bool {
		left = nil
		for _, name := range names {
			for key := range keys(ctx, tb, client, name) {
				left = append(left, key)
			}
		}
		for _, id := range leases(ctx, tb, client) {
			left = append(left, fmt.Sprintf("lease %x", int64(id)))
		}
		return len(left) == 0
	}, func() string { return fmt.Sprintf("left: %q", left) })
}

// AwaitQueue waits until there are n keys below a name.
func AwaitQueue(tb testing.TB, client *clientv3.Client, name string, n int) {
	tb.Helper()
	ctx, got := Bounded(tb), int64(0)
	Eventually(tb, func() bool {
		resp, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			tb.Fatalf("rig: %v", err)
		}
		got = resp.Count
		return got == int64(n)
	}, func() string { return fmt.Sprintf("%d keys in the queue of %q, want %d", got, name, n) })
}

func keys(ctx context.Context, tb testing.TB, client *clientv3.Client, name string) map[string]clientv3.LeaseID {
	tb.Helper()
	resp, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		tb.Fatalf("rig: %v", err)
	}
	found := make(map[string]clientv3.LeaseID)
	for _, kv := range resp.Kvs {
		found[string(kv.Key)] = clientv3.LeaseID(kv.Lease)
	}
	return found
}

func leases(ctx context.Context, tb testing.TB, client *clientv3.Client) []clientv3.LeaseID {
	tb.Helper()
	resp, err := client.Leases(ctx)
	if err != nil {
		tb.Fatalf("rig: %v", err)
	}
	var ids []clientv3.LeaseID
	for _, l := range resp.Leases {
		ids = append(ids, l.ID)
	}
	return ids
}
