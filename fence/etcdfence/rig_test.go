package etcdfence_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

var (
	_ etcdfence.Holder = (*lease.Lock)(nil)
	_ etcdfence.Holder = (*election.Leadership)(nil)
)

func TestMain(m *testing.M) {
	clock.System = clock.Clock{} // the fake clock of the tests' bubbles
	os.Exit(m.Run())
}

// start makes a server and a client for the bubble of the calling test.
func start(t *testing.T) (*fakeetcd.Server, *fakeetcd.Client) {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv, srv.NewClient(t.Context())
}

// holder is a lock's key put by hand.
type holder struct {
	cmp   clientv3.Cmp
	token fence.Token
}

func (h holder) IsOwner() clientv3.Cmp { return h.cmp }
func (h holder) Token() fence.Token    { return h.token }

// contend puts a contender's key into the queue of a name, on a lease of its own.
func contend(t *testing.T, c *clientv3.Client, name string) (string, holder) {
	t.Helper()
	granted, err := c.Grant(t.Context(), 3600)
	require.NoError(t, err)
	key := fmt.Sprintf("%s/%x-0", name, int64(granted.ID))
	return key, enter(t, c, key, granted.ID)
}

func enter(t *testing.T, c *clientv3.Client, key string, id clientv3.LeaseID) holder {
	t.Helper()
	put, err := c.Put(t.Context(), key, "", clientv3.WithLease(id))
	require.NoError(t, err)
	rev := put.Header.Revision
	return holder{clientv3.Compare(clientv3.CreateRevision(key), "=", rev), fence.Token(rev)}
}

func newKV(t *testing.T, kv clientv3.KV, h etcdfence.Holder) *etcdfence.KV {
	t.Helper()
	k, err := etcdfence.NewKV(kv, h)
	require.NoError(t, err)
	return k
}

func newMarks(t *testing.T, kv clientv3.KV) *etcdfence.Marks {
	t.Helper()
	m, err := etcdfence.NewMarks(kv, etcdfence.Options{MaxEra: 32767})
	require.NoError(t, err)
	return m
}

func markKV(t *testing.T, kv clientv3.KV, resource string) *etcdfence.KV {
	t.Helper()
	k, err := newMarks(t, kv).KV(resource)
	require.NoError(t, err)
	return k
}

func with(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	return fence.NewContext(t.Context(), token)
}

// contents returns the keys below a prefix and their values.
func contents(srv *fakeetcd.Server, prefix string) map[string]string {
	all := map[string]string{}
	for _, kv := range srv.Keys(prefix) {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

// second returns only the error of a call.
func second[T any](_ T, err error) error { return err }

// writes are two ways to write one key: alone, and in the branch of a transaction that the server chooses.
// TestKV_answersAsWithout tests all others.
var writes = map[string]func(ctx context.Context, kv clientv3.KV, key, value string) error{
	"Put": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second(kv.Put(ctx, key, value))
	},
	"Txn": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second(kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision("none"), ">", 0)).
			Then(clientv3.OpPut(key, "wrong branch")).Else(clientv3.OpPut(key, value)).Commit())
	},
}

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
