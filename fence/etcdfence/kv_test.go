package etcdfence_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
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

// A fenced KV works below etcd's own wrappers: namespace.NewKV, which puts the caller's keys under a prefix and leaves the
// lock's key unchanged, and the transactional memory of concurrency.
func TestNewKV_belowEtcdsWrappers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		transact := func(kv clientv3.KV, apply func(concurrency.STM) error) error {
			client := clientv3.NewCtxClient(with(t, h.token))
			client.KV = namespace.NewKV(kv, "app/")
			return second(concurrency.NewSTM(client, apply))
		}
		for _, kv := range []clientv3.KV{newKV(t, c, h), markKV(t, c, "r")} {
			srv.Delete("app/d")
			conflict := true
			require.NoError(t, transact(kv, func(stm concurrency.STM) error {
				old := stm.Get("d")
				if conflict {
					srv.Put("app/d", "2")
					conflict = false
				}
				stm.Put("d", old+"1")
				return nil
			}))
			require.Equal(t, map[string]string{"app/d": "21"}, contents(srv, "app/"))
		}
		// In the wrong order the KV looks for the lock's key in the namespace: nothing is accepted.
		require.ErrorIs(t, newKV(t, namespace.NewKV(c, "app/"), h).Check(t.Context()), fence.ErrStale)
		srv.Delete(key)
		lost := transact(newKV(t, c, h), func(stm concurrency.STM) error { stm.Put("d", ""); return nil })
		require.ErrorIs(t, lost, fence.ErrStale)
		require.Equal(t, map[string]string{"app/d": "21"}, contents(srv, "app/"))
	})
}

// Keys of several queues come and go, on the lease in their name, on another one or on none. After each step, writes
// under a hold are done if its key is still there, on its lease. Otherwise nothing runs, and the error reports the
// oldest contender that is younger, unless many other keys precede it. Reads outside of transactions are not fenced.
func TestNewKV_model(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		ctx, leases := t.Context(), []clientv3.LeaseID{0}
		for range 2 {
			granted, err := c.Grant(ctx, 3600)
			require.NoError(t, err)
			leases = append(leases, granted.ID)
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		forms := []string{
			"n/%x", "n/%x-0", "n/r%x-0", "n/r%x-1", "n/-%x-0", "n/%[1]x/%[1]x-0", "m/%x-0", "n/~%x", "n/m/%x", "n/name/%x", "n/z/z%x", "n/name%x", "queue-of-none-%x",
		}
		refusal := func(h holder) error {
			stale := &fence.StaleError{Resource: string(h.cmp.KeyBytes()), Token: h.token}
			queued, younger := stale.Resource[:strings.LastIndexByte(stale.Resource, '/')+1], []*mvccpb.KeyValue(nil)
			for _, kv := range srv.Keys(queued) {
				_, formed := queue.FormOf(kv.Key)
				switch {
				case kv.CreateRevision > h.token.Revision():
					younger = append(younger, kv)
				case kv.CreateRevision == h.token.Revision() && (queue.Contends(queued, kv) || !formed && kv.Lease != 0):
					return nil
				}
			}
			slices.SortFunc(younger, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
			younger = younger[:min(len(younger), 8)]
			owner := slices.IndexFunc(younger, func(kv *mvccpb.KeyValue) bool { return queued != "" && queue.Contends(queued, kv) })
			if owner >= 0 {
				stale.Highest, _ = fence.NewToken(3, younger[owner].CreateRevision)
				stale.ByReader = strings.HasPrefix(string(younger[owner].Key), queued+"r")
			}
			return stale
		}
		var holds []holder
		for step := range 120 {
			named := leases[r.IntN(len(leases))]
			key := fmt.Sprintf(forms[r.IntN(len(forms))], int64(named))
			switch r.IntN(8) {
			case 0, 1, 2:
				srv.Delete(key)
			case 3:
				enter(t, c.Client, key, leases[r.IntN(len(leases))])
			default:
				h := enter(t, c.Client, key, named)
				h.token, _ = fence.NewToken(3, h.token.Revision())
				holds = append(holds, h)
			}
			for n := 0; step%30 == 29 && n < 9; n++ {
				srv.Put(fmt.Sprintf("n/many/%d", step+n), "")
			}
			for _, back := range []int{1, 2, 3, 5, 8, 13} {
				if back > len(holds) {
					break
				}
				kv, rev := newKV(t, c, holds[len(holds)-back]), srv.Rev()
				want := refusal(holds[len(holds)-back])
				require.Equal(t, want, kv.Check(ctx))
				got, err := kv.Get(ctx, "d")
				require.NoError(t, err)
				plain, err := c.Get(ctx, "d")
				require.NoError(t, err)
				require.Equal(t, plain, got)
				require.NoError(t, second(kv.Do(ctx, clientv3.OpGet("d"))))
				require.Equal(t, want, second(kv.Txn(ctx).Then(clientv3.OpGet("d")).Commit()))
				require.Equal(t, rev, srv.Rev())
				for name, write := range writes {
					value := fmt.Sprint(name, step, back)
					require.Equal(t, want, write(ctx, kv, "d", value))
					require.Equal(t, want == nil, contents(srv, "d")["d"] == value)
				}
				require.Equal(t, want == nil, srv.Rev() > rev)
			}
		}
	})
}

// An unknown outcome is reported with the client's error, and the write is not sent again.
func TestNewKV_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		_, h := contend(t, c.Client, "locks/a")
		kv := newKV(t, c, h)
		for lost, want := range map[fakeetcd.Message]int{fakeetcd.Request: 0, fakeetcd.Answer: 1} {
			for name, write := range writes {
				srv.Put("d", "before")
				sent := len(c.Calls(fakeetcd.Txn))
				rev := srv.Rev()
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 2, Lose: lost, Err: fakeetcd.ErrUnavailable})
				err := write(t.Context(), kv, "d", name)
				require.Len(t, c.Calls(fakeetcd.Txn), sent+1, name)
				_, plain := c.Txn(t.Context()).Commit()
				require.Equal(t, plain, err, name)
				require.NotErrorIs(t, err, fence.ErrStale)
				require.EqualValues(t, want, srv.Rev()-rev, name)
			}
		}
	})
}

func TestNewKV_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		_, h := contend(t, c.Client, "locks/a")
		calls := len(srv.Calls(fakeetcd.Any))
		absent := clientv3.Compare(clientv3.CreateRevision("k"), "=", 0)
		version := h.cmp.Clone()
		version.GetCompare().Target = pb.Compare_VERSION
		for _, tt := range []struct {
			h    etcdfence.Holder
			want string
		}{
			{nil, "etcdfence: holder is nil"},
			{holder{}, "holder's token: fence: invalid token 0: want 1 to 9223372036854775807"},
			{holder{h.cmp, -1}, "invalid token -1: want 1 to"},
			{holder{h.cmp, 1 << 48}, "invalid token 281474976710656: want 1 to"},
			{holder{clientv3.Cmp{}, h.token}, "holder's IsOwner is {"},
			{holder{absent, h.token}, "want one key's create revision = 2"},
			{holder{h.cmp, h.token + 1}, "want one key's create revision = 3"},
			{holder{h.cmp.WithPrefix(), h.token}, "holder's IsOwner is"},
			{holder{clientv3.Compare(clientv3.CreateRevision("k"), "<", 2), h.token}, "holder's IsOwner is"},
			{holder{clientv3.Compare(clientv3.ModRevision("k"), "=", 2), h.token}, "holder's IsOwner is"},
			{holder{version, h.token}, "holder's IsOwner is"},
			{holder{clientv3.Compare(clientv3.CreateRevision(""), "=", 2), h.token}, "holder's IsOwner is"},
		} {
			_, err := etcdfence.NewKV(c, tt.h)
			require.ErrorContains(t, err, tt.want)
		}
		_, err := etcdfence.NewKV(nil, h)
		require.ErrorContains(t, err, "kv is nil")
		_, err = newKV(t, c, h).Compact(t.Context(), 2)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.NotImplements(t, (*etcdfence.Holder)(nil), (*lease.ReadLock)(nil))
		require.Len(t, srv.Calls(fakeetcd.Any), calls, "nothing was sent")
	})
}

// Each call of If, Then and Else adds to those before it, and a change of what the caller has passed changes nothing.
func TestKV_Txn_collects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		cmp := clientv3.Compare(clientv3.CreateRevision("d"), "=", 0)
		ops := []clientv3.Op{clientv3.OpPut("d", "mine")}
		txn := newKV(t, c, h).Txn(t.Context()).Then(ops...).If(cmp).Then(clientv3.OpPut("d2", "too")).If()
		cmp.WithKeyBytes([]byte(key))
		ops[0] = clientv3.OpPut("d", "changed since")
		resp, err := txn.Commit()
		require.NoError(t, err)
		require.Len(t, resp.Responses, 2)
		require.Equal(t, map[string]string{"d": "mine", "d2": "too"}, contents(srv, "d"))
	})
}

// A member of etcd answers a transaction of serializable reads only, or without operations, from its own state, which
// may be old and still have a lost lock's key. Whatever the caller asks for, no such transaction is sent.
func TestKV_asksNoMemberThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		_, h := contend(t, c.Client, "locks/a")
		granted, err := c.Grant(t.Context(), 60)
		require.NoError(t, err)
		alone := enter(t, c.Client, "no-queue", granted.ID)
		ctx := with(t, 41)
		require.NoError(t, newMarks(t, c).Claim(ctx, "r"))
		sent := len(c.Calls(fakeetcd.Any))
		for _, kv := range []*etcdfence.KV{newKV(t, c, h), newKV(t, c, alone), markKV(t, c, "r")} {
			require.NoError(t, kv.Check(ctx))
			require.NoError(t, second(kv.Txn(ctx).Commit()))
			require.NoError(t, second(kv.Txn(ctx).Then(clientv3.OpGet("d", clientv3.WithSerializable())).Commit()))
		}
		calls := c.Calls(fakeetcd.Any)[sent:]
		require.Len(t, calls, 9)
		for _, call := range calls {
			switch r := call.Request.(type) {
			case *pb.RangeRequest:
				require.False(t, r.Serializable)
			case *pb.TxnRequest:
				require.True(t, slices.ContainsFunc(append(r.Success, r.Failure...), func(op *pb.RequestOp) bool {
					return op.GetRequestRange() != nil && !op.GetRequestRange().Serializable
				}), "%v", r)
			default:
				require.Fail(t, "another request", "%v", r)
			}
		}
	})
}
