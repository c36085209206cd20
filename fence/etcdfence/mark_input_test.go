package etcdfence_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func TestMarks_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m := newMarks(t, c)
		_, err := etcdfence.NewMarks(nil, etcdfence.Options{})
		require.ErrorContains(t, err, "kv is nil")
		long := strings.Repeat("x", 1025)
		for bad, want := range map[string]string{
			long:    " has 1025 bytes, want 1 to 1024",
			"a\x00": ` is "a\x00", want UTF-8 without NUL`,
			"\xff":  ` is "\xff", want UTF-8`,
		} {
			_, err := etcdfence.NewMarks(c, etcdfence.Options{Prefix: bad})
			require.ErrorContains(t, err, "Options.Prefix"+want)
			for _, err := range []error{m.Claim(with(t, 41), bad), m.Check(with(t, 41), bad), second(m.KV(bad))} {
				require.ErrorContains(t, err, "etcdfence: resource"+want)
			}
		}
		require.EqualError(t, m.Claim(with(t, 41), ""), "etcdfence: resource is empty, want 1 to 1024 bytes")
		kv := markKV(t, c, "orders")
		for _, ctx := range []context.Context{t.Context(), with(t, 0), with(t, -1), with(t, 1<<48)} {
			for _, err := range []error{
				m.Claim(ctx, "orders"), m.Check(ctx, "orders"), kv.Claim(ctx), kv.Check(ctx),
				second(kv.Put(ctx, "d", "")), second(kv.Delete(ctx, "d")), second(kv.Txn(ctx).Commit()),
			} {
				require.ErrorIs(t, err, fence.ErrInvalidToken)
				require.ErrorContains(t, err, `etcdfence: token for "orders": fence: invalid token: the context carries none, want `)
			}
		}
		require.Empty(t, srv.Calls(fakeetcd.Any), "nothing was sent")
		require.NoError(t, m.Claim(with(t, 41), strings.Repeat("x", 1024)))
	})
}

// No write that goes through it reaches a mark.
func TestMarks_KV_sparesTheMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		kv := markKV(t, c, "r")
		require.NoError(t, kv.Claim(with(t, 41)))
		calls := len(srv.Calls(fakeetcd.Any))
		ctx := with(t, 41)
		for _, op := range []clientv3.Op{
			clientv3.OpPut("fence/r", "00000000000000000001"),
			clientv3.OpPut("fence/other", ""),
			clientv3.OpDelete("fence/r"),
			clientv3.OpDelete("fence/", clientv3.WithPrefix()),
			clientv3.OpDelete("fen", clientv3.WithPrefix()),
			clientv3.OpDelete("", clientv3.WithPrefix()),
			clientv3.OpDelete("a", clientv3.WithFromKey()),
			clientv3.OpDelete("a", clientv3.WithRange("fence/0")),
			clientv3.OpDelete("fence/z", clientv3.WithRange("z")),
		} {
			_, err := kv.Do(ctx, op)
			require.ErrorContains(t, err, "covers marks")
			_, err = kv.Txn(ctx).Else(clientv3.OpTxn(nil, nil, []clientv3.Op{op})).Commit()
			require.ErrorContains(t, err, `want keys without the prefix "fence/"`)
			_, err = kv.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{op}, nil)).Commit()
			require.ErrorContains(t, err, "covers marks")
		}
		require.Len(t, srv.Calls(fakeetcd.Any), calls, "nothing was sent")
		for _, op := range []clientv3.Op{
			clientv3.OpDelete("a", clientv3.WithRange("fence/")),
			clientv3.OpDelete("fence0", clientv3.WithFromKey()),
			clientv3.OpDelete("fenc0", clientv3.WithPrefix()),
			clientv3.OpPut("fence", ""),
			clientv3.OpGet("fence/r"),
		} {
			_, err := kv.Do(ctx, op)
			require.NoError(t, err)
		}
		read, err := kv.Txn(ctx).Then(clientv3.OpGet("fence/", clientv3.WithPrefix())).Commit()
		require.NoError(t, err)
		require.EqualValues(t, 1, read.Responses[0].GetResponseRange().Count, "marks may be read")
		require.Equal(t, fence.Token(41), mustParse(t, srv, "fence/r"))
	})
}

// A token that nobody was granted does not become the mark. Where one has, docs/guarantees.md has the ways back.
func TestMarks_absurdToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m, err := etcdfence.NewMarks(c, etcdfence.Options{})
		require.NoError(t, err)
		absurd := with(t, math.MaxInt64)
		kv, err := m.KV("orders")
		require.NoError(t, err)
		for _, err := range []error{m.Claim(absurd, "orders"), m.Check(absurd, "orders"), second(kv.Put(absurd, "d", ""))} {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, "9223372036854775807: its era is 32767, want 0 to 15")
			require.ErrorContains(t, err, "MaxEra")
		}
		require.Empty(t, srv.Calls(fakeetcd.Any), "nothing was sent")
		require.NoError(t, newMarks(t, c).Claim(absurd, "orders"), "every era is allowed")
		require.ErrorIs(t, m.Claim(with(t, 41), "orders"), fence.ErrStale)
		srv.Put("fence/orders", "00000000000000000041")
		require.NoError(t, m.Claim(with(t, 54), "orders"))

		_, err = etcdfence.NewMarks(c, etcdfence.Options{MaxEra: 32768})
		require.ErrorContains(t, err, "etcdfence: Options.MaxEra is 32768, want 1 to 32767")
	})
}
