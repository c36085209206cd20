package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

const shapeLease = 0x77

// shapeServer is a server with a lease of a known number, and one key, written first.
func shapeServer(t *testing.T, key, value string) (*etcdtest.Server, *clientv3.Client) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	require.NoError(t, client.Sync(bounded(t)))
	leases := etcdserverpb.NewLeaseClient(client.ActiveConnection())
	grant := &etcdserverpb.LeaseGrantRequest{ID: shapeLease, TTL: 3600}
	require.NoError(t, second2(leases.LeaseGrant(bounded(t), grant)))
	require.NoError(t, second2(client.Put(bounded(t), key, value, clientv3.WithLease(shapeLease))))
	return srv, client
}

// shapeHolder holds the first key of a shapeServer.
type shapeHolder struct{}

func (shapeHolder) Token() fence.Token { return 2 }
func (shapeHolder) Held() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision("locks/n/77-0"), "=", 2)
}

// TestEtcdfence_answersAsWithout makes the same random requests of two servers, of one by way of a fenced KV, and
// compares answers, errors, revisions and contents. The servers differ in their numbers alone.
func TestEtcdfence_answersAsWithout(t *testing.T) {
	t.Parallel()
	const requests = 600
	for name, row := range map[string]struct {
		key, value string
		fenced     func(t *testing.T, client *clientv3.Client) *etcdfence.KV
	}{
		"held": {"locks/n/77-0", "", func(t *testing.T, client *clientv3.Client) *etcdfence.KV {
			t.Helper()
			return fencedBy(t, client, shapeHolder{})
		}},
		"mark": {"fence/r", "00000000000000000041", func(t *testing.T, client *clientv3.Client) *etcdfence.KV {
			t.Helper()
			return markedBy(t, client, "r")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plainServer, plain := shapeServer(t, row.key, row.value)
			fencedServer, client := shapeServer(t, row.key, row.value)
			fenced, ctx, seed := row.fenced(t, client), fence.NewContext(bounded(t), 41), rand.Uint64()
			t.Logf("seed %d", seed)
			r, refused := shapes{rand.New(rand.NewPCG(seed, 1))}, 0
			for range requests {
				op := r.op(2)
				want, wantErr := shape(ctx, plain, op)
				got, err := shape(ctx, fenced, op)
				require.Equal(t, wantErr, err)
				require.Equal(t, want, got)
				require.Equal(t, plainServer.Revision(t), fencedServer.Revision(t))
				if err != nil {
					refused++
				}
			}
			require.Positive(t, refused)
			require.Less(t, refused, requests/2)
			require.Equal(t, fmt.Sprint(plainServer.KeyValues(t, "")), fmt.Sprint(fencedServer.KeyValues(t, "")))
		})
	}
}

var shapeNumbers = regexp.MustCompile(`(cluster_id|member_id|raft_term):\d+`)

// shape is the answer to a request, without the numbers that differ between servers.
func shape(ctx context.Context, kv clientv3.KV, op clientv3.Op) (string, error) {
	resp, err := kv.Do(ctx, op)
	text := fmt.Sprint((*etcdserverpb.PutResponse)(resp.Put()), (*etcdserverpb.RangeResponse)(resp.Get()),
		(*etcdserverpb.DeleteRangeResponse)(resp.Del()), (*etcdserverpb.TxnResponse)(resp.Txn()))
	return shapeNumbers.ReplaceAllString(text, "$1:any"), err
}

// shapes makes random requests.
type shapes struct{ *rand.Rand }

func (r shapes) key() string { return fmt.Sprintf("d/%d", r.IntN(5)) }

func (r shapes) op(depth int) clientv3.Op {
	if depth > 0 && r.IntN(2) == 0 {
		return clientv3.OpTxn(r.cmps(), r.ops(depth-1), r.ops(depth-1))
	}
	switch r.IntN(9) {
	case 0, 1:
		return clientv3.OpPut(r.key(), fmt.Sprint(r.IntN(4)), clientv3.WithPrevKV(), clientv3.WithLease(shapeLease))
	case 2:
		return clientv3.OpPut(r.key(), fmt.Sprint(r.IntN(4)))
	case 3:
		return clientv3.OpPut(r.key(), "", clientv3.WithIgnoreValue(), clientv3.WithPrevKV())
	case 4:
		return clientv3.OpPut(r.key(), "1", clientv3.WithLease(clientv3.LeaseID(r.IntN(20)*0x11)))
	case 5:
		return clientv3.OpDelete(r.key(), clientv3.WithPrevKV())
	case 6:
		return clientv3.OpDelete(r.key(), clientv3.WithRange("d/4"), clientv3.WithPrevKV())
	case 7:
		return clientv3.OpGet("d/", clientv3.WithPrefix(), clientv3.WithLimit(2))
	default:
		return clientv3.OpGet(r.key())
	}
}

func (r shapes) ops(depth int) []clientv3.Op {
	ops := make([]clientv3.Op, r.IntN(3))
	for i := range ops {
		ops[i] = r.op(depth)
	}
	return ops
}

func (r shapes) cmps() []clientv3.Cmp {
	cmps := make([]clientv3.Cmp, r.IntN(3))
	for i := range cmps {
		switch result := []string{"=", "!=", "<", ">"}[r.IntN(4)]; r.IntN(3) {
		case 0:
			cmps[i] = clientv3.Compare(clientv3.Value(r.key()), result, fmt.Sprint(r.IntN(4)))
		case 1:
			cmps[i] = clientv3.Compare(clientv3.Version(r.key()), result, r.IntN(3))
		default:
			cmps[i] = clientv3.Compare(clientv3.CreateRevision("d/"), result, r.IntN(9)).WithPrefix()
		}
	}
	return cmps
}
