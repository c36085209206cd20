package etcd_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
)

// Transactions that come while the lane is busy are sent together as soon as it is free. Each gets the result that
// it would have got alone.
func TestLine_share(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.srv.Put("taken/x", "of somebody")
		txns := slices.Concat(e.enters("a", 10), e.plant("b", 10),
			[]etcd.Txn{e.enter("taken/x"), leave("missing/x")}, e.enters("c", 10))
		outcomes, sent := e.together(t, txns)
		require.Len(t, sent, 2, "not all comparisons hold, so the second request has nested transactions")
		require.Equal(t, len(txns), carried(sent[0]))
		require.Len(t, nested(sent[1]), len(txns))
		require.Empty(t, sent[1].Compare)
		for i, o := range outcomes {
			require.NoError(t, o.err)
			require.LessOrEqual(t, o.at, time.Millisecond, "the moment in which a line gathers transactions")
			require.Equal(t, e.srv.Rev(), o.res.Revision, "of the shared commit")
			require.Len(t, o.res.Responses, map[bool]int{true: len(txns[i].Then), false: len(txns[i].Else)}[o.res.Succeeded])
			switch {
			case i == 20:
				require.False(t, o.res.Succeeded)
				require.Equal(t, "of somebody", string(o.res.Responses[0].GetResponseRange().Kvs[0].Value))
			case i == 21:
				require.False(t, o.res.Succeeded)
			case txns[i].Queue == "":
				require.True(t, o.res.Succeeded)
				require.EqualValues(t, 1, o.res.Responses[0].GetResponseDeleteRange().Deleted)
			default:
				require.True(t, o.res.Succeeded)
				kvs := o.res.Responses[1].GetResponseRange().Kvs
				require.Len(t, kvs, 1)
				require.Equal(t, txns[i].Queue+"x", string(kvs[0].Key))
				require.Equal(t, o.res.Revision, kvs[0].CreateRevision)
			}
		}
	})
}

// The keys of one queue get different create revisions, in the order in which they came. Transactions of other
// queues, and those that leave, do not wait for them.
func TestLine_queue_neverTies(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var txns []etcd.Txn
		for i := range 10 {
			txns = append(txns, e.enter(fmt.Sprintf("same/%d", i)), e.enter(fmt.Sprintf("other-%d/x", i)))
			txns = append(txns, e.plant(fmt.Sprintf("same/%d", i), 1)...)
		}
		outcomes, sent := e.together(t, txns)
		results := requireAllGood(t, outcomes)
		require.Len(t, sent, 10)
		require.Equal(t, 21, carried(sent[0]))
		for _, req := range sent {
			requireNoTies(t, req)
		}
		for i := 3; i < len(results); i += 3 {
			require.Greater(t, results[i].Revision, results[i-3].Revision)
			require.Equal(t, results[1].Revision, results[i+1].Revision)
			require.Equal(t, results[1].Revision, results[i+2].Revision)
		}
	})
}

// If all comparisons hold, the request is flat. After one that does not hold, batches are nested for some time.
func TestLine_share_flat(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		flat := func(name string, more ...etcd.Txn) bool {
			t.Helper()
			txns := append(e.enters(name, 5), more...)
			outcomes, sent := e.together(t, txns)
			for i, o := range outcomes {
				require.NoError(t, o.err)
				require.Equal(t, i < 5, o.res.Succeeded)
				require.Equal(t, e.srv.Rev(), o.res.Revision)
				if i < 5 {
					require.Len(t, o.res.Responses, len(txns[i].Then))
					newest := o.res.Responses[1].GetResponseRange().Kvs[0]
					require.Equal(t, txns[i].Queue+"x", string(newest.Key))
					require.Equal(t, o.res.Revision, newest.CreateRevision)
				}
			}
			return len(nested(sent[0])) == 0
		}
		require.True(t, flat("a"))
		require.True(t, flat("b", leave("missing/x")))
		for i := range 16 {
			require.False(t, flat(fmt.Sprint("c", i)))
		}
		require.True(t, flat("d"))
	})
}
