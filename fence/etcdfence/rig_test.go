package etcdfence_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// requireStale checks a refusal.
func requireStale(t *testing.T, err error, want fence.StaleError) {
	t.Helper()
	require.ErrorIs(t, err, fence.ErrStale)
	require.Equal(t, &want, err)
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
