package main

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// oblivious answers as a server that has lost its leases, but not the keys on them.
type oblivious struct{ clientv3.Lease }

func (oblivious) TimeToLive(_ context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{ID: id, TTL: -1}, nil
}

// A key whose own record names a lease that does not list the key holds or waits forever: doctor reports it.
func TestDoctor_keptKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		client := srv.NewClient(t.Context())
		granted, err := client.Grant(t.Context(), 60)
		require.NoError(t, err)
		key := fmt.Sprintf("jobs/it's/~doctor/%x-", int64(granted.ID)) // a node of a tree; doctor's own keys begin like it
		holder, err := client.Put(t.Context(), key+"a", "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		_, err = client.Put(t.Context(), key+"b", "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)

		a := newApp()
		a.etcd.commandTimeout = time.Minute
		d := doctor{app: a, client: client.Client, prefix: "jobs/"}
		d.keys(t.Context())
		require.Equal(t, []string{"leases", "stray keys"}, checks(d.findings), "the lease has both keys")

		client.Lease = oblivious{client.Lease}
		d.findings = nil
		d.keys(t.Context())
		require.Equal(t, []string{"leases", "keys of leases", "keys of leases", "stray keys"}, checks(d.findings))
		holds, waits := d.findings[1], d.findings[2]
		require.Equal(t, levelFail, holds.Level)
		require.Contains(t, holds.Says, "etcd has kept the key "+key+"a without its lease: nothing will end that hold")
		require.Equal(t, []string{fmt.Sprintf(`leasefence release --mode wait --yes --token %d -- 'jobs/it'\''s/~doctor'`, holder.Header.Revision)}, holds.Run)
		require.Equal(t, levelFail, waits.Level)
		require.Contains(t, waits.Says, "nothing will end that wait")
		require.Equal(t, []string{`etcdctl del -- 'jobs/it'\''s/` + key[len("jobs/it's/"):] + `b'`}, waits.Run)
		require.Equal(t, levelOK, d.findings[3].Level)
	})
}

func checks(all []finding) (names []string) {
	for _, f := range all {
		names = append(names, f.Check)
	}
	return names
}
