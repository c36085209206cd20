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
	"github.com/leasefence/leasefence/lease"
)

// The contexts of locks carry token and name. Inside the function of an inner lock, a write under the outer lock needs
// fence.ForLock or the outer context.
func TestMarks_nestedLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		s, err := lease.NewSession(t.Context(), c.Client, lease.Options{Prefix: "app/"})
		require.NoError(t, err)
		defer s.Close(t.Context()) //nolint:errcheck // the server ends with the test
		kv := markKV(t, c, "rows")
		put := func(ctx context.Context, value string) error { return second(kv.Put(ctx, "d", value)) }
		err = s.Do(t.Context(), "accounts", func(accounts context.Context, token fence.Token) error {
			require.NoError(t, newMarks(t, c).Claim(accounts, "rows"))
			require.Equal(t, value(int64(token), 0)+" app/accounts", contents(srv, "fence/")["fence/rows"])
			return s.Do(accounts, "report", func(report context.Context, token fence.Token) error {
				require.Equal(t, &fence.OtherLockError{
					Resource: "rows", Token: token, Lock: "app/report", Follows: "app/accounts",
				}, put(report, "wrong"))
				require.NoError(t, put(accounts, "outer"))
				return put(fence.ForLock(report, "app/accounts"), "inner")
			})
		})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"d": "inner"}, contents(srv, "d"))
	})
}

// A malformed mark accepts no token. FuzzParseMarks in package admission has more spellings.
func TestMarks_malformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m := newMarks(t, c)
		kv := markKV(t, c, "r")
		for _, value := range []string{
			"", "41", "41 7", strings.Repeat("\n", 1<<10), "41 0 ", "41 0 " + strings.Repeat("l", fence.MaxLock+1),
		} {
			srv.Put("fence/r", value)
			rev := srv.Rev()
			for _, tok := range []fence.Token{1, 41, math.MaxInt64} {
				for _, err := range []error{
					m.Claim(with(t, tok), "r"), m.Check(with(t, tok), "r"), second(kv.Put(with(t, tok), "d", "")),
					m.Claim(of(t, "accounts", tok), "r"), m.Move(of(t, "accounts", tok), "r"),
					m.ClaimRead(reading(t, fence.ReadToken(tok)), "r"), m.CheckRead(reading(t, fence.ReadToken(tok)), "r"),
				} {
					require.ErrorIs(t, err, etcdfence.ErrMalformedMark, "%q", value)
					require.NotErrorIs(t, err, fence.ErrStale)
					require.ErrorContains(t, err, `at "fence/r": value `)
					require.Less(t, len(err.Error()), 250)
					require.NotContains(t, err.Error(), "\n")
				}
			}
			require.Equal(t, rev, srv.Rev())
		}
	})
}

// No write through a KV reaches a mark.
func TestMarks_KV_sparesTheMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		kv := markKV(t, c, "r")
		require.NoError(t, newMarks(t, c).Claim(with(t, 41), "r"))
		calls := len(srv.Calls(fakeetcd.Any))
		ctx := with(t, 41)
		for _, op := range []clientv3.Op{
			clientv3.OpPut("fence/r", "1 0"),
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
		require.Equal(t, value(41, 0), contents(srv, "")["fence/r"])
	})
}
