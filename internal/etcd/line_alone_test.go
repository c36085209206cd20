package etcd_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// seeing tells of the context of each transaction.
type seeing struct {
	clientv3.KV
	see func(context.Context)
}

func (s seeing) Txn(ctx context.Context) clientv3.Txn { s.see(ctx); return s.KV.Txn(ctx) }

func TestLine_alone_isTheCallersOwnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		var seen []context.Context
		e.c.KV = seeing{e.c.KV, func(ctx context.Context) { seen = append(seen, ctx) }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sent := e.record()
		for _, txn := range []etcd.Txn{e.enter("a/x"), e.enter("a/x"), leave("a/x"), e.enter("a/x")} {
			_, err := e.Commit(ctx, txn)
			require.NoError(t, err)
			want, err := e.c.Txn(ctx).If(txn.If...).Then(txn.Then...).Else(txn.Else...).Commit()
			require.NoError(t, err)
			require.NotNil(t, want)
		}
		require.Zero(t, e.owner.everSpawned())
		require.Zero(t, e.now())
		require.Len(t, seen, 8)
		for i, req := range sent() {
			require.Equal(t, ctx.Done(), seen[i].Done(), "not derived from it either")
			require.LessOrEqual(t, carried(req), 1)
			if i%2 == 1 {
				require.Equal(t, req.String(), sent()[i-1].String())
			}
		}
	})
}

// One after the other, nobody ever waits: each frees its lane, also with an error.
func TestLine_alone_everyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond})
		for range 50 {
			for _, fault := range []fakeetcd.Fault{
				{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable},
				{Times: 1, Lose: fakeetcd.Request},
			} {
				e.c.Inject(fakeetcd.Txn, fault)
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				_, err := e.Commit(ctx, leave("a/x"))
				cancel()
				require.Error(t, err)
				require.False(t, etcd.Refused(err))
			}
			_, err := e.Commit(t.Context(), leave("a/x"))
			require.NoError(t, err)
		}
		require.Zero(t, e.owner.everSpawned())
	})
}

// The bound is one of shared requests. One that is alone has the time that its caller gives it, and no more.
func TestLine_alone_endsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: 5 * bound})
		_, err := e.Commit(t.Context(), e.enter("a/x"))
		require.NoError(t, err)
		require.Equal(t, 5*bound, e.now())

		e.c.Cut()
		ctx, cancel := context.WithCancel(t.Context())
		got := e.send(ctx, e.enter("a/y"))
		requirePending(t, got)
		cancel()
		o := receive(t, got)
		require.ErrorIs(t, o.err, context.Canceled)
		require.NotErrorIs(t, o.err, etcd.ErrNotSent)
		require.Equal(t, 5*bound, o.at)
	})
}
