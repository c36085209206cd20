package integration_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// fencedWrites are the ways to write one key.
var fencedWrites = map[string]func(ctx context.Context, kv clientv3.KV, key, value string) error{
	"put": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second2(kv.Put(ctx, key, value))
	},
	"delete": func(ctx context.Context, kv clientv3.KV, key, _ string) error {
		return second2(kv.Delete(ctx, key))
	},
	"transaction": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second2(kv.Txn(ctx).Then(clientv3.OpPut(key, value)).Commit())
	},
	"transaction, true": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second2(kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0)).
			Then(clientv3.OpPut(key, value)).Else(clientv3.OpPut("wrong", "branch")).Commit())
	},
	"transaction, false": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second2(kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut("wrong", "branch")).Else(clientv3.OpPut(key, value)).Commit())
	},
}

func fencedBy(tb testing.TB, kv clientv3.KV, h etcdfence.Holder) *etcdfence.KV {
	tb.Helper()
	k, err := etcdfence.NewKV(kv, h)
	require.NoError(tb, err)
	return k
}

// writeable checks that a holder's writes of every kind are done, or that each is refused and does nothing.
func writeable(t *testing.T, srv *etcdtest.Server, client *clientv3.Client, want bool, kv *etcdfence.KV) {
	t.Helper()
	ctx := bounded(t)
	for name, write := range fencedWrites {
		require.NoError(t, second2(client.Put(bounded(t), "data", "before")))
		rev := srv.Revision(t)
		err := write(ctx, kv, "data", name)
		if want {
			require.NoError(t, err, name)
			require.Equal(t, rev+1, srv.Revision(t), name)
		} else {
			require.ErrorIs(t, err, fence.ErrStale, name)
			require.Equal(t, rev, srv.Revision(t), name)
		}
		require.Equal(t, want, kv.Check(ctx) == nil, name)
	}
	require.Empty(t, srv.Keys(t, "wrong"))
}

// TestEtcdfence_heldAtEveryStep tries all writes of an older and a newer holder at each step of a hand-over, for each
// way to lose a lock.
func TestEtcdfence_heldAtEveryStep(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	for name, lose := range map[string]func(t *testing.T, rig *lockRig, l *lease.Lock){
		"unlock": func(t *testing.T, _ *lockRig, l *lease.Lock) {
			t.Helper()
			require.NoError(t, l.Unlock(bounded(t)))
		},
		"close":  func(t *testing.T, rig *lockRig, _ *lease.Lock) { t.Helper(); _ = rig.Close(bounded(t)) },
		"revoke": func(t *testing.T, rig *lockRig, _ *lease.Lock) { t.Helper(); srv.Revoke(t, rig.leaseID()) },
		"delete": func(t *testing.T, _ *lockRig, l *lease.Lock) {
			t.Helper()
			require.NoError(t, second2(client.Delete(bounded(t), l.Key())))
		},
		"overwrite": func(t *testing.T, _ *lockRig, l *lease.Lock) {
			t.Helper()
			require.NoError(t, second2(client.Put(bounded(t), l.Key(), "")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			one, two := newLockRig(t, srv, lease.Options{}), newSession(t, srv.Client(t), lease.Options{})
			old := mustLock(t, one.Session, name)
			older := fencedBy(t, client, old)
			writeable(t, srv, client, true, older)
			waiter := goLock(ctx, two, name)
			awaitQueue(t, srv, name, 2)
			writeable(t, srv, client, true, older)
			lose(t, one, old)
			writeable(t, srv, client, false, older)
			// One that waits is not told that a key has been overwritten, only when it goes.
			require.NoError(t, second2(client.Delete(ctx, old.Key())))
			l := waiter.granted(t)
			newer := fencedBy(t, client, l)
			writeable(t, srv, client, true, newer)
			writeable(t, srv, client, false, older)
			stale := &fence.StaleError{Resource: old.Key(), Token: old.Token(), Highest: l.Token()}
			require.Equal(t, stale, older.Check(ctx))
			require.NoError(t, l.Unlock(ctx))
			writeable(t, srv, client, false, newer)
			require.Equal(t, &fence.StaleError{Resource: l.Key(), Token: l.Token()}, newer.Check(ctx))
		})
	}
}

// TestEtcdfence_sameKeyAgain takes a lock twice in one session, which has the same key for both on the same lease.
func TestEtcdfence_sameKeyAgain(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := newSession(t, client, lease.Options{})
	first := mustLock(t, s, "n")
	older := fencedBy(t, client, first)
	require.NoError(t, first.Unlock(bounded(t)))
	l := mustLock(t, s, "n")
	require.Equal(t, first.Key(), l.Key())
	writeable(t, srv, client, true, fencedBy(t, client, l))
	writeable(t, srv, client, false, older)
	stale := &fence.StaleError{Resource: l.Key(), Token: first.Token(), Highest: l.Token()}
	require.Equal(t, stale, older.Check(bounded(t)))
}

// TestEtcdfence_leader fences with an election's leadership.
func TestEtcdfence_leader(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := newSession(t, client, lease.Options{Era: 2})
	l, err := election.Campaign(bounded(t), s, "n", election.Options{Value: "one"})
	require.NoError(t, err)
	kv := fencedBy(t, client, l)
	require.NoError(t, l.Proclaim(bounded(t), "another value"))
	writeable(t, srv, client, true, kv)
	require.NoError(t, l.Resign(bounded(t)))
	writeable(t, srv, client, false, kv)
}

// TestEtcdfence_etcdsOwnHelpers runs namespaces and etcd's transactional memory on a fenced KV.
func TestEtcdfence_etcdsOwnHelpers(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	l := mustLock(t, newSession(t, client, lease.Options{}), "n")
	ctx := bounded(t)
	fenced := clientv3.NewCtxClient(ctx)
	fenced.KV = namespace.NewKV(fencedBy(t, client, l), "app/")
	add := func(stm concurrency.STM) error {
		stm.Put("data", stm.Get("data")+"1")
		return nil
	}
	levels := []concurrency.Isolation{
		concurrency.SerializableSnapshot, concurrency.Serializable,
		concurrency.RepeatableReads, concurrency.ReadCommitted,
	}
	for n, level := range levels {
		_, err := concurrency.NewSTM(fenced, add, concurrency.WithIsolation(level))
		require.NoError(t, err)
		require.Equal(t, "1111"[:n+1], string(srv.KeyValues(t, "app/data")[0].Value))
	}
	require.NoError(t, l.Unlock(ctx))
	for _, level := range levels {
		_, err := concurrency.NewSTM(fenced, add, concurrency.WithIsolation(level))
		require.ErrorIs(t, err, fence.ErrStale)
	}
	require.Equal(t, "1111", string(srv.KeyValues(t, "app/data")[0].Value))
}

// TestEtcdfence_lostMessages loses each message of a write: what is not known is told as the client tells it, once, and
// a request that is late is judged when it arrives.
func TestEtcdfence_lostMessages(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	l := mustLock(t, newSession(t, srv.Client(t), lease.Options{}), "n")
	marked := markedBy(t, client, "r")
	ctx := fence.NewContext(bounded(t), l.Token())
	require.NoError(t, marked.Claim(ctx))
	for name, kv := range map[string]*etcdfence.KV{"held": fencedBy(t, client, l), "mark": marked} {
		for fault, want := range map[faults.Fault]int64{faults.LoseRequest: 0, faults.LoseAnswer: 1} {
			rev, sent := srv.Revision(t), in.Sent(faults.Txn)
			in.Inject(t, faults.Rule{Fault: fault, Method: faults.Txn, Times: 1})
			err := second2(kv.Put(ctx, "data", name))
			require.ErrorContains(t, err, "lost")
			require.NotErrorIs(t, err, fence.ErrStale)
			require.Equal(t, sent+1, in.Sent(faults.Txn))
			require.Equal(t, rev+want, srv.Revision(t))
		}
	}

	late := make(chan struct{})
	in.Inject(t, faults.Rule{Fault: faults.LateRequest, Method: faults.Txn, Times: 2, Until: late})
	require.Error(t, second2(fencedBy(t, client, l).Put(ctx, "data", "late")))
	require.Error(t, second2(marked.Put(ctx, "data", "late")))
	require.NoError(t, l.Unlock(ctx))
	require.NoError(t, markedBy(t, srv.Client(t), "r").Claim(fence.NewContext(ctx, l.Token()+1)))
	rev, answered := srv.Revision(t), in.Answered(faults.Txn)
	close(late)
	require.NoError(t, in.AwaitAnswered(ctx, faults.Txn, answered+2))
	require.Equal(t, rev, srv.Revision(t), "they came too late")
}

// TestEtcdfence_permissions checks what the doc says a user needs.
func TestEtcdfence_permissions(t *testing.T) {
	t.Parallel()
	const both = authpb.READWRITE
	srv, root := startWithAuth(t, nil,
		permission{"locks/n/", both}, permission{"data", both}, permission{"fence/r", both})
	app := srv.Client(t, user("app"))
	l := mustLock(t, newSession(t, app, lease.Options{Prefix: "locks/"}), "n")
	foreign := mustLock(t, newSession(t, root, lease.Options{Prefix: "locks/"}), "other")
	ctx := fence.NewContext(bounded(t), l.Token())
	kv := fencedBy(t, app, l)
	require.NoError(t, second2(kv.Put(ctx, "data", "1")))
	require.NoError(t, kv.Check(ctx))
	require.ErrorIs(t, second2(kv.Put(ctx, "not mine", "1")), rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, fencedBy(t, app, foreign).Check(ctx), rpctypes.ErrPermissionDenied)

	marks, err := etcdfence.NewMarks(app, etcdfence.Options{})
	require.NoError(t, err)
	require.NoError(t, marks.Claim(ctx, "r"))
	require.NoError(t, marks.Check(ctx, "r"))
	require.ErrorIs(t, marks.Claim(ctx, "another"), rpctypes.ErrPermissionDenied)
	marked, err := marks.KV("r")
	require.NoError(t, err)
	require.NoError(t, second2(marked.Put(ctx, "data", "2")))
	require.ErrorIs(t, second2(marked.Put(ctx, "not mine", "1")), rpctypes.ErrPermissionDenied)
	require.Equal(t, []string{"data"}, keysAsRoot(t, root, "data"))
	require.Empty(t, keysAsRoot(t, root, "not mine"))
	require.NoError(t, l.Unlock(ctx))
	require.ErrorIs(t, second2(kv.Put(ctx, "data", "3")), fence.ErrStale)
}

// TestEtcdfence_limits checks what the doc says of the server's limit on operations.
func TestEtcdfence_limits(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	l := mustLock(t, newSession(t, client, lease.Options{}), "n")
	marked := markedBy(t, client, "r")
	always := clientv3.Compare(clientv3.CreateRevision("none"), "=", 0)
	puts := func(n int) (ops []clientv3.Op) {
		for i := range n {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("data/%d", i), ""))
		}
		return ops
	}
	token := l.Token()
	raised := func() context.Context { token++; return fence.NewContext(bounded(t), token) }
	kept := func() context.Context { return fence.NewContext(bounded(t), token) }
	for _, row := range []struct {
		kv           *etcdfence.KV
		ctx          func() context.Context
		bare, nested int
	}{{fencedBy(t, client, l), kept, 128, 126}, {marked, raised, 127, 126}, {marked, kept, 128, 127}} {
		require.NoError(t, second2(row.kv.Txn(row.ctx()).Then(puts(row.bare)...).Commit()))
		require.ErrorIs(t, second2(row.kv.Txn(row.ctx()).Then(puts(row.bare+1)...).Commit()), rpctypes.ErrTooManyOps)
		require.NoError(t, second2(row.kv.Txn(row.ctx()).If(always).Then(puts(row.nested)...).Commit()))
		err := second2(row.kv.Txn(row.ctx()).If(always).Then(puts(row.nested + 1)...).Commit())
		require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
		require.NoError(t, row.kv.Claim(row.ctx())) // the last was refused, and raised nothing
	}
}
