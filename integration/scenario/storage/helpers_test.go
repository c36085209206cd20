package storage_test

import (
	"context"
	"testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
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
