package etcdfence_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// writes are the ways to write one key.
var writes = map[string]func(ctx context.Context, kv clientv3.KV, key, value string) error{
	"put": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second(kv.Put(ctx, key, value))
	},
	"delete": func(ctx context.Context, kv clientv3.KV, key, _ string) error {
		return second(kv.Delete(ctx, key))
	},
	"transaction": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second(kv.Txn(ctx).Then(clientv3.OpPut(key, value)).Commit())
	},
	"transaction, false": func(ctx context.Context, kv clientv3.KV, key, value string) error {
		return second(kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut("wrong", "branch")).Else(clientv3.OpPut(key, value)).Commit())
	},
}

// writeable checks that a holder's writes of every kind are done, or that each is refused and does nothing.
func writeable(t *testing.T, srv *etcdtest.Server, client *clientv3.Client, want bool, kv *etcdfence.KV) {
	t.Helper()
	ctx := rig.Bounded(t)
	for name, write := range writes {
		require.NoError(t, second(client.Put(ctx, "data", "before")))
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

// All writes of an older and a newer holder are tried at each step of a hand-over, for each way to lose a lock.
func TestNewKV_heldAtEveryStep(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	for name, lose := range map[string]func(s *lease.Session, l *lease.Lock) error{
		"unlock": func(_ *lease.Session, l *lease.Lock) error { return l.Unlock(rig.Bounded(t)) },
		"close":  func(s *lease.Session, _ *lease.Lock) error { _ = s.Close(rig.Bounded(t)); return nil },
		"revoke": func(s *lease.Session, _ *lease.Lock) error {
			return second(client.Revoke(rig.Bounded(t), s.Status().LeaseID))
		},
		"delete": func(_ *lease.Session, l *lease.Lock) error { return second(client.Delete(rig.Bounded(t), l.Key())) },
		"overwrite": func(_ *lease.Session, l *lease.Lock) error {
			return second(client.Put(rig.Bounded(t), l.Key(), ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := rig.Bounded(t)
			one, two := rig.NewSession(t, client, lease.Options{}), rig.NewSession(t, srv.Client(t), lease.Options{})
			old := rig.MustLock(t, one, name)
			older := heldBy(t, client, old)
			next := make(chan *lease.Lock, 1)
			go func() {
				l, _ := two.Lock(ctx, name)
				next <- l
			}()
			require.Eventually(t, func() bool { return len(srv.Keys(t, name+"/")) == 2 }, rig.Patience, 5*time.Millisecond)
			writeable(t, srv, client, true, older)
			require.NoError(t, lose(one, old))
			writeable(t, srv, client, false, older)
			// One that waits is not told that a key has been overwritten, only when it goes.
			require.NoError(t, second(client.Delete(ctx, old.Key())))
			l := <-next
			require.NotNil(t, l)
			newer := heldBy(t, client, l)
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

// An election's leadership is a hold too, and stays one when its value changes.
func TestNewKV_leader(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{Era: 2})
	l, err := election.Campaign(rig.Bounded(t), s, "n", election.Options{Value: "one"})
	require.NoError(t, err)
	kv := heldBy(t, client, l)
	require.NoError(t, l.Proclaim(rig.Bounded(t), "another value"))
	writeable(t, srv, client, true, kv)
	require.NoError(t, l.Resign(rig.Bounded(t)))
	writeable(t, srv, client, false, kv)
}

// A user needs the permissions that the package's doc lists, and no more.
func TestKV_permissions(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) { cfg.BcryptCost = 4 }}) // the cheapest
	ctx, client := rig.Bounded(t), srv.Client(t)
	for _, user := range []string{"root", "app"} {
		require.NoError(t, second(client.UserAdd(ctx, user, user)))
		require.NoError(t, second(client.RoleAdd(ctx, user)))
		require.NoError(t, second(client.UserGrantRole(ctx, user, user)))
	}
	for _, prefix := range []string{"locks/n/", "data", "fence/r"} {
		end, both := clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(authpb.READWRITE)
		require.NoError(t, second(client.RoleGrantPermission(ctx, "app", prefix, end, both)))
	}
	require.NoError(t, second(client.AuthEnable(ctx)))
	app, root := srv.Client(t, etcdtest.User("app", "app")), srv.Client(t, etcdtest.User("root", "root"))

	l := rig.MustLock(t, rig.NewSession(t, app, lease.Options{Prefix: "locks/"}), "n")
	foreign := rig.MustLock(t, rig.NewSession(t, root, lease.Options{Prefix: "locks/"}), "other")
	ctx = fence.NewContext(ctx, l.Token())
	held, marked := heldBy(t, app, l), markedBy(t, app, "r")
	for _, kv := range []*etcdfence.KV{held, marked} {
		require.NoError(t, kv.Claim(ctx))
		require.NoError(t, kv.Check(ctx))
		require.NoError(t, second(kv.Put(ctx, "data", "1")))
		require.ErrorIs(t, second(kv.Put(ctx, "not mine", "1")), rpctypes.ErrPermissionDenied)
	}
	require.ErrorIs(t, heldBy(t, app, foreign).Check(ctx), rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, markedBy(t, app, "another").Claim(ctx), rpctypes.ErrPermissionDenied)
	none, err := root.Get(ctx, "not mine")
	require.NoError(t, err)
	require.Empty(t, none.Kvs)
	require.NoError(t, l.Unlock(ctx))
	require.ErrorIs(t, second(held.Put(ctx, "data", "3")), fence.ErrStale)
}

// As many operations as the package's doc says fit into a transaction.
func TestKV_limits(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	l := rig.MustLock(t, rig.NewSession(t, client, lease.Options{}), "n")
	marked := markedBy(t, client, "r")
	always := clientv3.Compare(clientv3.CreateRevision("none"), "=", 0)
	puts := func(n int) (ops []clientv3.Op) {
		for i := range n {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("data/%d", i), ""))
		}
		return ops
	}
	token := l.Token()
	raised := func() context.Context { token++; return fence.NewContext(rig.Bounded(t), token) }
	kept := func() context.Context { return fence.NewContext(rig.Bounded(t), token) }
	for _, row := range []struct {
		kv           *etcdfence.KV
		ctx          func() context.Context
		bare, nested int
	}{{heldBy(t, client, l), kept, 128, 126}, {marked, raised, 127, 126}, {marked, kept, 128, 127}} {
		require.NoError(t, second(row.kv.Txn(row.ctx()).Then(puts(row.bare)...).Commit()))
		require.ErrorIs(t, second(row.kv.Txn(row.ctx()).Then(puts(row.bare+1)...).Commit()), rpctypes.ErrTooManyOps)
		require.NoError(t, second(row.kv.Txn(row.ctx()).If(always).Then(puts(row.nested)...).Commit()))
		err := second(row.kv.Txn(row.ctx()).If(always).Then(puts(row.nested + 1)...).Commit())
		require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
		require.NoError(t, row.kv.Claim(row.ctx())) // the last was refused, and raised nothing
	}
}
