package storage_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// second drops an answer that a test does not need.
func second[T any](_ T, err error) error { return err }

func doNothing(context.Context, fence.Token) error { return nil }

// stall keeps a member from applying what the cluster commits, and so from answering, until release is called; it still
// votes, replicates and renews. A defragmentation does that, and so does whatever makes the backend slow.
func stall(t *testing.T, srv *etcdtest.Server) (release func()) {
	t.Helper()
	tx := srv.Etcd(t).Server.Backend().BatchTx()
	tx.Lock()
	stalled := true
	release = func() {
		if stalled {
			stalled = false
			tx.Unlock()
		}
	}
	t.Cleanup(release)
	return release
}

// backlog is how many commits a member has yet to apply.
func backlog(t *testing.T, srv *etcdtest.Server) uint64 {
	t.Helper()
	s := srv.Etcd(t).Server
	committed := s.CommittedIndex()
	applied := s.AppliedIndex()
	require.GreaterOrEqual(t, committed, applied)
	return committed - applied
}

// fillBacklog has a stalled member commit until more than limit commits wait. It asks the member itself: so many requests of
// clients would leave a busy machine no time to renew a lease.
func fillBacklog(t *testing.T, srv *etcdtest.Server, limit uint64) {
	t.Helper()
	server := srv.Etcd(t).Server
	for backlog(t, srv) <= limit {
		const more = 500
		upTo := server.CommittedIndex() + more
		ctx, cancel := context.WithCancel(rig.Bounded(t))
		var wg sync.WaitGroup
		for range more {
			wg.Go(func() { _, _ = server.Put(ctx, &etcdserverpb.PutRequest{Key: []byte("flood")}) })
		}
		rig.Eventually(t, func() bool { return server.CommittedIndex() >= upTo || backlog(t, srv) > limit },
			func() string { return "no backlog" })
		cancel() // none is answered
		wg.Wait()
	}
}
