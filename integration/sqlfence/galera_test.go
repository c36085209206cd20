package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// An older holder commits on the first node after the second node has committed the claim of a newer writer or reader,
// which has read. The first node has the claim in its queue and has not applied it. A path's holder is refused by the
// writer of the node above, which does not write the marks of the path's end.
func TestMarks_galera_claimOnAnotherNode(t *testing.T) {
	nodes := galera(t)
	first, second := nodes[0], nodes[1]
	// The table has no key. The other node takes a while to apply an update in descending order, since it looks for each
	// row from the place of the last one.
	first.must(t, "CREATE TABLE slow (n INT, text CHAR(200)) ENGINE = InnoDB")
	first.must(t, "INSERT INTO slow SELECT seq, 'x' FROM seq_1_to_1500")
	applying := func() (yes bool) {
		const query = "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Update_rows_log_event%'"
		return first.scan(t.Context(), query, &yes) == nil && yes
	}
	for _, how := range append([]form{checkPath}, forms...) {
		for _, reads := range []bool{false, true} {
			path := resource
			if how == checkPath {
				path += "/b"
			}
			if reads && how == checkPath {
				continue // a reader of the node above does not refuse it
			}
			t.Run(fmt.Sprintf("%s, newer reader %t", how, reads), func(t *testing.T) {
				first.reset(t)
				require.NoError(t, first.claimPath(as(t, older), path)) // of one node, it equals Claim
				require.Eventually(t, func() bool { return second.mark(t) == older }, patience, time.Millisecond)
				comes, want := call{claims: "Claim", how: do, token: newer}, int64(1)
				if reads {
					comes.claims, comes.how, want = "ClaimRead", checkRead, 0
				}
				launched := false
				err := first.run(as(t, older), path, how, func(ctx context.Context, tx conn) error {
					if err := write(ctx, tx, 0, older); err != nil || launched {
						return err
					}
					launched = true
					require.Eventually(t, func() bool {
						if first.updates(t) == second.updates(t) { // also if the last one was applied before anybody looked
							second.must(t, "UPDATE slow SET n = n + 1 ORDER BY n DESC")
						}
						return applying()
					}, patience, time.Millisecond)
					n, err := second.act(t, comes, resource)
					require.NoError(t, err)
					require.Zero(t, n, "the newer holder's first read")
					return nil
				})
				require.True(t, launched)
				require.True(t, errors.Is(err, fence.ErrStale) || transient(err), "a stale write was acknowledged: %v", err)
				applied := func() bool { return first.mark(t) == newer && first.row(t).n == want }
				require.Eventually(t, applied, patience, time.Millisecond)
				require.Zero(t, first.row(t).stale)
			})
		}
	}
}

// updates counts the updates of the table slow that a node has applied.
func (r *rig) updates(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, r.scan(t.Context(), "SELECT MIN(n) - 1 FROM slow", &n))
	return n
}

// mark returns the higher of the two marks.
func (r *rig) mark(t *testing.T) fence.Token {
	t.Helper()
	var got int64
	err := r.scan(t.Context(), "SELECT GREATEST(token, read_token) FROM leasefence_marks WHERE resource = 'accounts'", &got)
	if !errors.Is(err, sql.ErrNoRows) {
		require.NoError(t, err)
	}
	return fence.Token(got)
}

// A newer writer on the second node does not wait for a reader's transaction on the first one, which does not see the
// write.
func TestMarks_galera_writerPassesAReaderOnAnotherNode(t *testing.T) {
	nodes := galera(t)
	first, second := nodes[0], nodes[1]
	require.NoError(t, first.claimRead(asReader(t, older), resource))
	ctx, writer := asReader(t, older), as(t, newer)
	applied := func() bool { return first.mark(t) == newer && first.row(t).n == 1 }
	err := first.run(ctx, resource, checkRead, func(_ context.Context, tx conn) error {
		n, err := read(ctx, tx)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, second.claim(writer, resource))
		require.NoError(t, second.increment(writer, do))
		require.Eventually(t, applied, patience, time.Millisecond)
		n, err = read(ctx, tx)
		if err == nil {
			require.Zero(t, n, "what the reader has read has changed")
		}
		return err
	})
	require.True(t, transient(err), "the reader's transaction outlives the claim: %v", err)
	requireOutcome(t, staleReader(), first.claimRead(ctx, resource), checkRead)
}
