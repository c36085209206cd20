package storage_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// An acquisition can be told that there is no space by the very transaction that has put its key: the server finds out
// while it applies that, and tells only then. When its time is over it must not leave the key in the queue.
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
	ctx, giveUp := context.WithTimeout(rig.Bounded(t), 10*time.Second)
	defer giveUp()
	refused := make(chan error, 1)
	go func() { refused <- second(s.Lock(ctx, "n")) }()
	rig.Eventually(t, func() bool { return backlog(t, srv) > 2*quota>>20 }, func() string { return "not asked for" })
	release()
	wg.Wait()
	require.ErrorContains(t, rig.Await(t, refused, "no answer"), "database space exceeded")
	rig.Eventually(t, func() bool { return len(srv.Keys(t, "n/")) == 0 }, func() string { return "the key is left" })
}
