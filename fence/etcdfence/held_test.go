package etcdfence_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// After the lock is lost a transaction does not run, even if it only reads. Other reads are not fenced.
func TestNewKV_writesWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		for name, write := range writes {
			key, h := contend(t, c.Client, "locks/a")
			kv := newKV(t, c, h)
			require.NoError(t, kv.Check(t.Context()))
			srv.Put("d", "before")
			require.NoError(t, write(t.Context(), kv, "d", name))
			require.NotEqual(t, "before", contents(srv, "d")["d"], name)

			require.True(t, srv.Delete(key))
			rev := srv.Rev()
			requireStale(t, write(t.Context(), kv, "d", "stale"), fence.StaleError{Resource: key, Token: h.token})
			requireStale(t, kv.Check(t.Context()), fence.StaleError{Resource: key, Token: h.token})
			require.Equal(t, rev, srv.Rev(), name)
			requireStale(t, second(kv.Txn(t.Context()).Then(clientv3.OpGet("d")).Commit()), fence.StaleError{Resource: key, Token: h.token})
			require.NoError(t, second(kv.Get(t.Context(), "d")))
			require.NoError(t, second(kv.Do(t.Context(), clientv3.OpGet("d"))))
		}
	})
}

// A refused write reports the oldest contender that is younger than the lost hold, a writer or a reader. It reports
// nobody else, and nobody if very many nested names precede the contender.
func TestNewKV_reportsThePresentOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		granted, err := c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		hex := fmt.Sprintf("%x", int64(granted.ID))
		for n := range 20 {
			enter(t, c.Client, fmt.Sprintf("locks/a/%s-older%d", hex, n), granted.ID)
		}
		key, h := contend(t, c.Client, "locks/a")
		h.token, _ = fence.NewToken(3, h.token.Revision())
		kv, stale := newKV(t, c, h), fence.StaleError{Resource: key, Token: h.token}
		srv.Delete(key)
		for other, id := range map[string]clientv3.LeaseID{
			"locks/a/0-no-lease":                0,
			"locks/a/" + hex + "/" + hex + "-0": granted.ID, // of the name "locks/a/" + hex
			"locks/a/another-name":              granted.ID,
			"locks/b/" + hex + "-0":             granted.ID,
		} {
			enter(t, c.Client, other, id)
			requireStale(t, kv.Check(t.Context()), stale)
		}
		readerKey := "locks/a/r" + hex + "-0"
		reader := enter(t, c.Client, readerKey, granted.ID)
		nextKey, next := contend(t, c.Client, "locks/a")
		stale.Highest, _ = fence.NewToken(3, reader.token.Revision())
		stale.ByReader = true
		requireStale(t, kv.Check(t.Context()), stale)
		srv.Delete(readerKey)
		stale.Highest, _ = fence.NewToken(3, next.token.Revision())
		stale.ByReader = false
		requireStale(t, second(kv.Put(t.Context(), "d", "")), stale)

		srv.Delete(nextKey)
		for n := range 20 {
			srv.Put(fmt.Sprintf("locks/a/b/%d", n), "")
		}
		contend(t, c.Client, "locks/a")
		requireStale(t, kv.Check(t.Context()), fence.StaleError{Resource: key, Token: h.token})
	})
}

// A key that was deleted and put again, even with the same lease, is another hold.
func TestNewKV_keyMadeAgainIsAnotherHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		granted, err := c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		hex := fmt.Sprintf("%x", int64(granted.ID))
		for _, key := range []string{"locks/a/" + hex, "locks/a/" + hex + "-0", "no-queue"} {
			h := enter(t, c.Client, key, granted.ID)
			kv := newKV(t, c, h)
			enter(t, c.Client, key, granted.ID) // as etcd's Election.Proclaim does
			require.NoError(t, kv.Check(t.Context()))
			srv.Delete(key)
			next := enter(t, c.Client, key, granted.ID)
			stale := fence.StaleError{Resource: key, Token: h.token, Highest: next.token}
			if key == "no-queue" {
				stale.Highest = 0
			}
			requireStale(t, kv.Check(t.Context()), stale)
			srv.Delete(key)
		}
	})
}

// A key that somebody has written without its lease keeps its create revision but is no contender: the next in the
// queue holds the lock.
func TestNewKV_keyTakenOffItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		other, err := c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		for _, id := range []clientv3.LeaseID{0, other.ID} {
			key, h := contend(t, c.Client, "locks/a")
			_, next := contend(t, c.Client, "locks/a")
			require.NoError(t, newKV(t, c, h).Check(t.Context()))
			enter(t, c.Client, key, id)
			stale := fence.StaleError{Resource: key, Token: h.token, Highest: next.token}
			requireStale(t, second(newKV(t, c, h).Put(t.Context(), "d", "stale")), stale)
			require.NoError(t, newKV(t, c, next).Check(t.Context()))
			require.Empty(t, contents(srv, "d"))
			_, err := c.Delete(t.Context(), "locks/", clientv3.WithPrefix())
			require.NoError(t, err)
		}
		for _, key := range []string{"locks/a/-1f-0", "locks/a/r1f-0"} { // a negative lease, a reader
			h := enter(t, c.Client, key, other.ID)
			require.ErrorIs(t, newKV(t, c, h).Check(t.Context()), fence.ErrStale, key)
		}
		h := enter(t, c.Client, "no-queue", other.ID)
		enter(t, c.Client, "no-queue", 0)
		require.ErrorIs(t, newKV(t, c, h).Check(t.Context()), fence.ErrStale)
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
