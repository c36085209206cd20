package fakeetcd_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestKV_revisionsOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		require.EqualValues(t, 1, srv.Rev())
		require.EqualValues(t, 2, put(t, c, "a", "1"))
		require.EqualValues(t, 3, put(t, c, "a", "2"))
		resp, err := c.Get(t.Context(), "a")
		require.NoError(t, err)
		require.EqualValues(t, 3, resp.Header.Revision)
		require.Len(t, resp.Kvs, 1)
		kv := resp.Kvs[0]
		require.Equal(t, []int64{2, 3, 2}, []int64{kv.CreateRevision, kv.ModRevision, kv.Version})

		require.True(t, srv.Delete("a"))
		require.False(t, srv.Delete("a"))
		require.EqualValues(t, 4, srv.Rev(), "a delete of nothing is no revision")
		require.EqualValues(t, 5, srv.Put("a", "3"))
		kv = srv.Keys("")[0]
		require.Equal(t, []int64{5, 5, 1}, []int64{kv.CreateRevision, kv.ModRevision, kv.Version})

		old, err := c.Get(t.Context(), "a", clientv3.WithRev(2))
		require.NoError(t, err)
		require.Equal(t, "1", string(old.Kvs[0].Value))
		gone, err := c.Get(t.Context(), "a", clientv3.WithRev(4))
		require.NoError(t, err)
		require.Empty(t, gone.Kvs)
		_, err = c.Get(t.Context(), "a", clientv3.WithRev(6))
		require.ErrorIs(t, err, rpctypes.ErrFutureRev)

		_, err = c.Compact(t.Context(), 4)
		require.NoError(t, err)
		require.ErrorIs(t, srv.Compact(4), rpctypes.ErrCompacted)
		require.ErrorIs(t, srv.Compact(9), rpctypes.ErrFutureRev)
		_, err = c.Get(t.Context(), "a", clientv3.WithRev(3))
		require.ErrorIs(t, err, rpctypes.ErrCompacted)
		gone, err = c.Get(t.Context(), "a", clientv3.WithRev(4))
		require.NoError(t, err)
		require.Empty(t, gone.Kvs)
	})
}

func TestKV_Get_options(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		lease := grant(t, c, 60)
		put(t, c, "p/b", "3")                            // create 2
		put(t, c, "p/a", "1", clientv3.WithLease(lease)) // create 3
		put(t, c, "p/c", "2")                            // create 4
		put(t, c, "p/b", "3")                            // mod 5
		put(t, c, "q", "")                               // create 6
		for _, tc := range []struct {
			name  string
			opts  []clientv3.OpOption
			want  string
			count int64
			more  bool
		}{
			{"prefix", []clientv3.OpOption{clientv3.WithPrefix()}, "p/a p/b p/c", 3, false},
			{"from key", []clientv3.OpOption{clientv3.WithFromKey()}, "p/a p/b p/c q", 4, false},
			{"range", []clientv3.OpOption{clientv3.WithRange("p/b")}, "p/a", 1, false},
			{"limit", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(2)}, "p/a p/b", 3, true},
			{"exact limit", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(3)}, "p/a p/b p/c", 3, false},
			{"first created", clientv3.WithFirstCreate(), "p/b", 3, true},
			{"last created", clientv3.WithLastCreate(), "p/c", 3, true},
			{"last modified", clientv3.WithLastRev(), "p/b", 3, true},
			{
				"created before",
				append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(3)),
				"p/a", 3, true,
			},
			{"created since", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMinCreateRev(3)}, "p/a p/c", 3, false},
			{"modified since", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMinModRev(4)}, "p/b p/c", 3, false},
			{"modified until", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMaxModRev(4)}, "p/a p/c", 3, false},
			{
				"by value",
				[]clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend)},
				"p/b p/c p/a", 3, false,
			},
			{
				"by version",
				[]clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend)},
				"p/b p/a p/c", 3, false,
			},
			{"count", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCountOnly()}, "", 3, false},
		} {
			key := "p/"
			if tc.name == "range" {
				key = "p/a"
			}
			resp, err := c.Get(t.Context(), key, tc.opts...)
			require.NoError(t, err, tc.name)
			var got []string
			for _, kv := range resp.Kvs {
				got = append(got, string(kv.Key))
			}
			require.Equal(t, tc.want, strings.Join(got, " "), tc.name)
			require.Equal(t, tc.count, resp.Count, tc.name)
			require.Equal(t, tc.more, resp.More, tc.name)
		}

		full, err := c.Get(t.Context(), "p/a")
		require.NoError(t, err)
		require.EqualValues(t, lease, full.Kvs[0].Lease)
		bare, err := c.Get(t.Context(), "p/a", clientv3.WithKeysOnly())
		require.NoError(t, err)
		require.Empty(t, bare.Kvs[0].Value)
		require.Zero(t, bare.Kvs[0].Lease, "3.7 answers keys-only reads from the index")

		_, err = c.Get(t.Context(), "")
		require.ErrorIs(t, err, rpctypes.ErrEmptyKey)
	})
}

func TestKV_answersAreCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		put(t, c, "a", "1")
		resp, err := c.Get(t.Context(), "a")
		require.NoError(t, err)
		resp.Kvs[0].Value[0] = 'x'
		require.Equal(t, "1", string(srv.Keys("a")[0].Value))
	})
}

func TestTxn_compares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		lease := grant(t, c, 60)
		put(t, c, "a", "v", clientv3.WithLease(lease)) // 2
		put(t, c, "a/1", "v")                          // 3
		put(t, c, "a/2", "w")                          // 4
		put(t, c, "a", "v", clientv3.WithLease(lease)) // 5
		for name, tc := range map[string]struct {
			cmp  clientv3.Cmp
			want bool
		}{
			"create":                  {clientv3.Compare(clientv3.CreateRevision("a"), "=", 2), true},
			"create less":             {clientv3.Compare(clientv3.CreateRevision("a"), "<", 2), false},
			"mod":                     {clientv3.Compare(clientv3.ModRevision("a"), ">", 4), true},
			"version":                 {clientv3.Compare(clientv3.Version("a"), "!=", 1), true},
			"value":                   {clientv3.Compare(clientv3.Value("a"), "=", "v"), true},
			"lease":                   {clientv3.Compare(clientv3.LeaseValue("a"), "=", lease), true},
			"missing create":          {clientv3.Compare(clientv3.CreateRevision("x"), "=", 0), true},
			"missing lease":           {clientv3.Compare(clientv3.LeaseValue("x"), "=", 0), true},
			"missing value":           {clientv3.Compare(clientv3.Value("x"), "=", ""), false},
			"missing value not equal": {clientv3.Compare(clientv3.Value("x"), "!=", "v"), false},
			"range all":               {clientv3.Compare(clientv3.CreateRevision("a/"), "<", 5).WithPrefix(), true},
			"range one fails":         {clientv3.Compare(clientv3.CreateRevision("a/"), "<", 4).WithPrefix(), false},
			"range value":             {clientv3.Compare(clientv3.Value("a/1"), "=", "v").WithRange("a/2"), true},
			"empty range":             {clientv3.Compare(clientv3.CreateRevision("x/"), "=", 0).WithPrefix(), true},
			"empty range not zero":    {clientv3.Compare(clientv3.CreateRevision("x/"), ">", 0).WithPrefix(), false},
		} {
			resp, err := c.Txn(t.Context()).If(tc.cmp).Commit()
			require.NoError(t, err, name)
			require.Equal(t, tc.want, resp.Succeeded, name)
		}
	})
}

func TestTxn_isOneRevisionAndReadsItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		put(t, c, "old", "") // 2
		resp, err := c.Txn(t.Context()).
			If(clientv3.Compare(clientv3.CreateRevision("q/1"), "=", 0)).
			Then(
				clientv3.OpPut("q/1", "a"),
				clientv3.OpDelete("old", clientv3.WithPrevKV()),
				clientv3.OpGet("q/", clientv3.WithFirstCreate()...),
				clientv3.OpTxn(
					// Evaluated before the put above: a nested condition does not see the outer writes.
					[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision("q/1"), "=", 0)},
					[]clientv3.Op{clientv3.OpPut("q/2", "b"), clientv3.OpGet("q/", clientv3.WithPrefix())},
					nil,
				),
			).Commit()
		require.NoError(t, err)
		require.True(t, resp.Succeeded)
		require.EqualValues(t, 3, resp.Header.Revision)
		require.EqualValues(t, 3, srv.Rev())
		require.Len(t, resp.Responses, 4)
		require.EqualValues(t, 1, resp.Responses[1].GetResponseDeleteRange().Deleted)
		require.Len(t, resp.Responses[1].GetResponseDeleteRange().PrevKvs, 1)
		require.EqualValues(t, 3, resp.Responses[2].GetResponseRange().Kvs[0].CreateRevision)
		nested := resp.Responses[3].GetResponseTxn()
		require.True(t, nested.Succeeded)
		require.Len(t, nested.Responses[1].GetResponseRange().Kvs, 2)
		require.Equal(t, []string{"q/1", "q/2"}, keyNames(srv, ""))

		again, err := c.Txn(t.Context()).
			If(clientv3.Compare(clientv3.CreateRevision("q/1"), "=", 0)).
			Then(clientv3.OpPut("q/1", "x")).
			Else(clientv3.OpGet("q/1")).Commit()
		require.NoError(t, err)
		require.False(t, again.Succeeded)
		require.EqualValues(t, 3, again.Header.Revision)
		require.Equal(t, "a", string(again.Responses[0].GetResponseRange().Kvs[0].Value))
	})
}

func TestTxn_refusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		del := clientv3.OpDelete
		op := clientv3.OpPut
		nest := func(then, els []clientv3.Op) clientv3.Op { return clientv3.OpTxn(nil, then, els) }
		many := make([]clientv3.Op, 129)
		for i := range many {
			many[i] = clientv3.OpGet("a")
		}
		big := strings.Repeat("x", 1<<20)
		for name, tc := range map[string]struct {
			ops  []clientv3.Op
			want error
		}{
			"put twice":          {[]clientv3.Op{op("a", ""), op("a", "")}, rpctypes.ErrDuplicateKey},
			"put and delete":     {[]clientv3.Op{op("a/1", ""), del("a/", clientv3.WithPrefix())}, rpctypes.ErrDuplicateKey},
			"put, nested put":    {[]clientv3.Op{op("a", ""), nest([]clientv3.Op{op("a", "")}, nil)}, rpctypes.ErrDuplicateKey},
			"put, nested delete": {[]clientv3.Op{op("a", ""), nest(nil, []clientv3.Op{del("a")})}, rpctypes.ErrDuplicateKey},
			"two nested puts": {
				[]clientv3.Op{nest([]clientv3.Op{op("a", "")}, nil), nest([]clientv3.Op{op("a", "")}, nil)},
				rpctypes.ErrDuplicateKey,
			},
			"both branches":  {[]clientv3.Op{nest([]clientv3.Op{op("a", "")}, []clientv3.Op{op("a", "")})}, nil},
			"delete twice":   {[]clientv3.Op{del("a"), del("a")}, nil},
			"unknown lease":  {[]clientv3.Op{op("b", ""), op("c", "", clientv3.WithLease(7))}, rpctypes.ErrLeaseNotFound},
			"too many":       {many, rpctypes.ErrTooManyOps},
			"too large":      {[]clientv3.Op{op("b", big), op("c", big)}, rpctypes.ErrRequestTooLarge},
			"no key":         {[]clientv3.Op{op("", "")}, rpctypes.ErrEmptyKey},
			"ignore value":   {[]clientv3.Op{op("b", "", clientv3.WithIgnoreValue())}, rpctypes.ErrKeyNotFound},
			"compacted read": {[]clientv3.Op{op("b", ""), clientv3.OpGet("a", clientv3.WithRev(99))}, rpctypes.ErrFutureRev},
		} {
			_, err := c.Txn(t.Context()).Then(tc.ops...).Commit()
			if tc.want == nil {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorIs(t, err, tc.want, name)
			require.Empty(t, srv.Keys("b"), "%s: nothing is written", name)
		}
		_, err := c.Put(t.Context(), "b", "", clientv3.WithLease(7))
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
	})
}

func TestKV_Put_keepsWhatIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		lease := grant(t, c, 60)
		put(t, c, "a", "1", clientv3.WithLease(lease))
		put(t, c, "a", "2", clientv3.WithIgnoreLease())
		put(t, c, "a", "", clientv3.WithIgnoreValue(), clientv3.WithLease(lease))
		kv := srv.Keys("a")[0]
		require.Equal(t, "2", string(kv.Value))
		require.EqualValues(t, lease, kv.Lease)
		put(t, c, "a", "3") // takes it off the lease
		require.Empty(t, srv.Leases()[0].Keys)
		require.NoError(t, srv.Revoke(lease))
		require.Len(t, srv.Keys("a"), 1)
	})
}
