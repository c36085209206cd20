package storage_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/scenario/rig"
	"github.com/leasefence/leasefence/lease"
)

// An acquisition can be refused for want of space by the very transaction that has put its key: the server finds out
// while it applies that, and tells only then. It must not leave the key in the queue.
func TestNoSpace_refusedAndYetDone(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) {
		cfg.QuotaBackendBytes = quota
		cfg.BackendBatchLimit = 1 // the size is that of what was committed
	}})
	client := srv.Client(t)
	s := rig.NewSession(t, srv.Client(t), lease.Options{})
	release := stall(t, srv)
	var wg sync.WaitGroup
	big := string(make([]byte, 1<<20))
	for range 2 * quota >> 20 {
		wg.Go(func() { _, _ = client.Put(rig.Bounded(t), "big", big) })
	}
	rig.Eventually(t, func() bool { return backlog(t, srv) >= 2*quota>>20 }, func() string { return "not written" })
	refused := make(chan error, 1)
	go func() { refused <- second(s.Lock(rig.Bounded(t), "n")) }()
	rig.Eventually(t, func() bool { return backlog(t, srv) > 2*quota>>20 }, func() string { return "not asked for" })
	release()
	wg.Wait()
	require.ErrorIs(t, rig.Await(t, refused, "no answer"), rpctypes.ErrNoSpace)
	rig.Eventually(t, func() bool { return len(srv.Keys(t, "n/")) == 0 }, func() string { return "the key is left" })
}
