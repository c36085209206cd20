package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/internal/fencetest"
	"github.com/leasefence/leasefence/lease"
)

// A user needs exactly the permissions that the package's documentation lists.
func TestKV_permissions(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
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
		require.NoError(t, second(kv.Put(ctx, "data", "1")))
		require.NoError(t, kv.Check(ctx))
		require.ErrorIs(t, second(kv.Put(ctx, "not mine", "1")), rpctypes.ErrPermissionDenied)
	}
	require.ErrorIs(t, heldBy(t, app, foreign).Check(ctx), rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, markedBy(t, app, "another").Check(ctx), rpctypes.ErrPermissionDenied)
	none, err := root.Get(ctx, "not mine")
	require.NoError(t, err)
	require.Empty(t, none.Kvs)
	require.NoError(t, l.Unlock(ctx))
	require.ErrorIs(t, second(held.Put(ctx, "data", "3")), fence.ErrStale)
}

// A transaction can have as many operations as the package's documentation says, and no more.
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
		require.NoError(t, second(row.kv.Put(row.ctx(), "data/0", ""))) // the refused transaction raised nothing
	}
}

// A write whose answer a server or a proxy replaces by Canceled is not sent again, as etcd's client would do.
func TestKV_sendsAWriteOnce(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	held := rig.MustLock(t, rig.NewSession(t, srv.Client(t), lease.Options{}), "n")
	var armed atomic.Bool
	client := etcdtest.NewClient(t, []string{srv.Endpoint()}, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(func(ctx context.Context,
			method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 0 && reply.(*pb.TxnResponse).Succeeded && armed.Swap(false) {
				return status.Error(codes.Canceled, "")
			}
			return err
		}))
	})
	for name, kv := range map[string]*etcdfence.KV{"NewKV": heldBy(t, client, held), "Marks": markedBy(t, client, "r")} {
		ctx := fence.NewContext(rig.Bounded(t), held.Token())
		armed.Store(true)
		_, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Version(name), "=", 0)).Then(clientv3.OpPut(name, "")).Commit()
		require.ErrorContains(t, err, "may have been carried out", name)
		require.NotErrorIs(t, err, context.Canceled, name)
		require.NoError(t, ctx.Err())
		got, err := client.Get(ctx, name)
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1, name)
		require.EqualValues(t, 1, got.Kvs[0].Version, name)
	}
}

// errOvertaken reports that the range that a write depends on has changed since it was read.
var errOvertaken = errors.New("overtaken")

// appends returns the forms to write.
func appends(t *testing.T, marks *etcdfence.Marks) []fencetest.Form {
	t.Helper()
	forms := []fencetest.Form{{Name: "Put"}, {Name: "Txn", Alone: "one step"}, {Name: "Get, Txn", Alone: "one step"}}
	for i, form := range forms {
		forms[i].Write = func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
			kv, err := marks.KV(resource)
			if err != nil {
				return err
			}
			data := "data/" + resource + "/"
			put, get := clientv3.OpPut(data+e.String(), ""), clientv3.OpGet(data, clientv3.WithPrefix())
			switch form.Name {
			case "Put":
				return second(kv.Do(ctx, put))
			case "Txn":
				resp, err := kv.Txn(ctx).Then(get, put).Commit()
				if err == nil {
					saw(entries(t, (*clientv3.GetResponse)(resp.Responses[0].GetResponseRange())))
				}
				return err
			}
			if err := marks.Claim(ctx, resource); err != nil {
				return err
			}
			read, err := kv.Do(ctx, get)
			if err != nil {
				return err
			}
			saw(entries(t, read.Get()))
			same := clientv3.Compare(clientv3.ModRevision(data), "<", read.Get().Header.Revision+1).WithPrefix()
			resp, err := kv.Txn(ctx).If(same).Then(put).Commit()
			if err == nil && !resp.Succeeded {
				err = errOvertaken
			}
			return err
		}
	}
	return forms
}

// entries parses keys of the form "data/resource/entry".
func entries(t *testing.T, resp *clientv3.GetResponse) []fencetest.Entry {
	t.Helper()
	var text strings.Builder
	for _, kv := range resp.Kvs {
		text.WriteString(" " + path.Base(string(kv.Key)))
	}
	all, err := fencetest.Entries(text.String())
	require.NoError(t, err)
	return all
}

// lost reports whether a message of a disturbed client was lost.
func lost(err error) bool { return err != nil && strings.Contains(err.Error(), "faults: ") }

// disturbed returns a client whose requests and answers are sometimes late or lost.
func disturbed(t *testing.T, srv *etcdtest.Server) *clientv3.Client {
	t.Helper()
	oneIn := func(n int) func(any) bool { return func(any) bool { return rand.IntN(n) == 0 } }
	in := faults.NewInterceptor(t)
	in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: oneIn(50)})
	in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.Txn, Match: oneIn(50)})
	in.Inject(t, faults.Rule{Fault: faults.LateRequest, Method: faults.Txn, Match: oneIn(50), Delay: 10 * time.Millisecond})
	in.Inject(t, faults.Rule{Fault: faults.DelayRequest, Method: faults.Txn, Match: oneIn(4), Delay: 5 * time.Millisecond})
	return srv.Client(t, etcdtest.Dial(in.DialOptions()...))
}

// Overlapping holders claim and write in all forms; messages are late or lost, and calls are cancelled at random.
func TestMarks_random(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client, late := srv.Client(t), disturbed(t, srv)
	marks, err := etcdfence.NewMarks(late, etcdfence.Options{})
	require.NoError(t, err)
	fencetest.Random(t, fencetest.Store{
		Forms:  appends(t, marks),
		Claims: []func(context.Context, string) error{marks.Claim},
		Entries: func(ctx context.Context, resource string) ([]fencetest.Entry, error) {
			err := marks.Claim(ctx, resource)
			for lost(err) && ctx.Err() == nil {
				err = marks.Claim(ctx, resource)
			}
			if err != nil {
				return nil, err
			}
			resp, err := client.Get(ctx, "data/"+resource+"/", clientv3.WithPrefix(),
				clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
			if err != nil {
				return nil, err
			}
			return entries(t, resp), nil
		},
		Ordered: true,
		Again:   func(err error) bool { return errors.Is(err, errOvertaken) || lost(err) },
	})
}

// Put stands in for a Check that raises the mark, since that of Marks raises none.
func TestMarks_grants(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, etcdtest.Options{}).Client(t)
	marks, err := etcdfence.NewMarks(client, etcdfence.Options{})
	require.NoError(t, err)
	put := func(ctx context.Context, resource string) error {
		return second(markedBy(t, client, resource).Put(ctx, "data/"+resource, ""))
	}
	fencetest.Grants(t, fencetest.VerbsOf(marks.Claim, put, nil, marks.ClaimRead, marks.CheckRead), "Check")
}

func TestMain(m *testing.M) { etcdtest.Main(m) }

// heldBy returns a KV that is fenced by a held lock.
func heldBy(tb testing.TB, kv clientv3.KV, h etcdfence.Holder) *etcdfence.KV {
	tb.Helper()
	k, err := etcdfence.NewKV(kv, h)
	require.NoError(tb, err)
	return k
}

// markedBy returns a KV that is fenced by a mark.
func markedBy(tb testing.TB, kv clientv3.KV, resource string) *etcdfence.KV {
	tb.Helper()
	marks, err := etcdfence.NewMarks(kv, etcdfence.Options{})
	require.NoError(tb, err)
	k, err := marks.KV(resource)
	require.NoError(tb, err)
	return k
}

// second returns only the error of a call.
func second[T any](_ T, err error) error { return err }
