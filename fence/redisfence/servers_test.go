package redisfence_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// newCluster returns a client of a cluster of one server with all slots.
func newCluster(t *testing.T) *redis.ClusterClient {
	t.Helper()
	bus, err := freePort()
	require.NoError(t, err)
	s := newServer(t, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
		"--cluster-require-full-coverage", "no")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	node := s.client(t)
	require.NoError(t, node.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	require.NoError(t, until(ctx, func() error {
		if info := node.ClusterInfo(ctx).Val(); !strings.Contains(info, "cluster_state:ok") {
			return errors.New("the cluster is not ready")
		}
		return nil
	}))
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.addr}})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestMarks_cluster(t *testing.T) {
	c := newCluster(t)
	f := newFence(t, c)
	found, err := f.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled"}, settings(found))
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	_, err = f.Do(as(t, 54), "orders",
		redisfence.Command("SET", "orders", "the key of the resource's name"),
		redisfence.Command("HSET", "{orders}:7", "state", "paid"),
		redisfence.Command("DEL", "archive:{orders}:6"),
	)
	require.NoError(t, err)
	require.ErrorIs(t, f.Set(as(t, 41), "orders", "{orders}:7", "stale"), fence.ErrStale)
	require.NoError(t, f.ClaimRead(fence.NewReadContext(t.Context(), 60), "other"))
	require.ErrorIs(t, f.Set(as(t, 54), "other", "{other}:7", "stale"), fence.ErrStale)

	for _, elsewhere := range []string{"customers", "orders:7", "{customers}:{orders}"} {
		const want = `a key is not in the hash slot of the mark, "fence:{orders}": ` +
			`want the key "orders" or keys that contain "{orders}": CROSSSLOT`
		err := f.Set(as(t, 55), "orders", elsewhere, 1)
		require.ErrorContains(t, err, `redisfence: do "orders": `+want)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
		require.Equal(t, "54 0", get(t, c, f.MarkKey("orders")), "nothing was done")
	}

	// Only a server that does not have the slot notices an undeclared key.
	require.NoError(t, c.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ClusterDelSlots(ctx, int(node.ClusterKeySlot(ctx, "customers").Val())).Err()
	}))
	undeclared := redisfence.NewScript("return redis.call('SET', 'customers', 1)")
	_, err = f.Run(as(t, 54), "orders", undeclared, nil)
	require.ErrorContains(t, err, "a key is not in the hash slot of the mark")
}

// A replica refuses every verb that could raise a mark, also if the mark need not rise. Otherwise a former primary that
// is a replica now would accept a reader although it does not know of a newer writer. Probe reports both.
func TestMarks_replica(t *testing.T) {
	at := newServer(t)
	primary, replica := at.client(t), newServer(t).client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, replica.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(at.port)).Err())
	require.NoError(t, until(ctx, func() error {
		// Not WAIT: on a connection that has written nothing, WAIT counts every replica.
		if info := primary.Info(ctx, "replication").Val(); !strings.Contains(info, "state=online") {
			return errors.New("the replica is not online")
		}
		return nil
	}))
	f, above := newFence(t, replica), newFence(t, primary)
	found, err := above.Probe(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled", "connected_slaves"}, settings(found))
	require.Contains(t, found[1].Effect, "a fail-over loses the marks")
	found, err = f.Probe(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled", "role"}, settings(found))
	require.Equal(t, "slave", found[1].Value)

	require.NoError(t, above.Claim(of(t, "accounts", 54), "orders"))
	_, err = primary.Wait(ctx, 1, 10*time.Second).Result()
	require.NoError(t, err)
	_, err = f.Do(of(t, "accounts", 54), "orders", redisfence.Command("GET", "orders"))
	require.ErrorContains(t, err, "READONLY", "it only reads, and the mark need not rise")
	for name, v := range verbs(f) {
		err := call(t, v, 54, "orders")
		if name == "Check" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "READONLY", name)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
	}
}
