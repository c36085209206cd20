package storage_test

import (
	"context"
	"testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

// second drops the first of two results.
func second[T any](_ T, err error) error { return err }

func doNothing(context.Context, fence.Token) error { return nil }

// stall keeps a member from applying committed entries, and so from answering, until release is called. The member
// still votes, replicates and renews leases. A defragmentation and a slow backend have the same effect.
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
