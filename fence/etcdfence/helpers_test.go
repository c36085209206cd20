package etcdfence_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/fence"
)

// namespace.NewKV puts the caller's keys under a prefix and leaves the lock's key unchanged.
func TestNewKV_inANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		for _, kv := range []clientv3.KV{
			namespace.NewKV(newKV(t, c, h), "app/"),
			namespace.NewKV(markKV(t, c, "r"), "app/"),
		} {
			ctx := with(t, h.token)
			require.NoError(t, second(kv.Put(ctx, "d", "1")))
			put, err := kv.Put(ctx, "d", "2", clientv3.WithPrevKV())
			require.NoError(t, err)
			require.Equal(t, "d", string(put.PrevKv.Key))
			resp, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("d"), "=", "3")).Else(clientv3.OpGet("d")).Commit()
			require.NoError(t, err)
			require.False(t, resp.Succeeded)
			require.Equal(t, "d", string(resp.Responses[0].GetResponseRange().Kvs[0].Key))
			require.Equal(t, map[string]string{"app/d": "2"}, contents(srv, "app/"))
		}
		// In the wrong order the KV looks for the lock's key in the namespace: nothing is accepted.
		require.ErrorIs(t, newKV(t, namespace.NewKV(c, "app/"), h).Check(t.Context()), fence.ErrStale)
		srv.Delete(key)
		require.ErrorIs(t, second(namespace.NewKV(newKV(t, c, h), "app/").Put(t.Context(), "d", "")), fence.ErrStale)
	})
}

// Etcd's own transactional memory runs on a client whose KV is fenced.
func TestNewKV_runsEtcdsSTM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		fenced := clientv3.NewCtxClient(t.Context())
		fenced.KV = newKV(t, c, h)
		conflict := true
		_, err := concurrency.NewSTM(fenced, func(stm concurrency.STM) error {
			old := stm.Get("d")
			if conflict {
				srv.Put("d", "2")
				conflict = false
			}
			stm.Put("d", old+"1")
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"d": "21"}, contents(srv, "d"))

		srv.Delete(key)
		_, err = concurrency.NewSTM(fenced, func(stm concurrency.STM) error { stm.Put("d", ""); return nil })
		require.ErrorIs(t, err, fence.ErrStale)
		require.Equal(t, map[string]string{"d": "21"}, contents(srv, "d"))
	})
}
