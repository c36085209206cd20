package main

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// Keys of etcd's own packages have no owner: the sentences say so.
func TestExplain_unnamedOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fakeetcd.New().NewClient(t.Context())
		granted, err := client.Grant(t.Context(), 60)
		require.NoError(t, err)
		key := fmt.Sprintf("job/%x", int64(granted.ID))
		put, err := client.Put(t.Context(), key, "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		says := func() []string {
			e, err := explain(t.Context(), client.Client, fence.Token(put.Header.Revision), "")
			require.NoError(t, err)
			return e.Says
		}
		require.Contains(t, says()[0], "holds job: an unnamed owner, ")
		_, err = client.Delete(t.Context(), key)
		require.NoError(t, err)
		require.Contains(t, says()[0], "belonged to job and an unnamed owner. ")
	})
}
