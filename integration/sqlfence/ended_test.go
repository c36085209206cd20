package sqlfence_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// A function ends its transaction by a statement that the driver does not understand, and may begin another. The guard
// has gone, a newer holder comes, and the function writes: Do returns ErrUnknown.
func TestDo_fnEndsTheTransactionByAStatement(t *testing.T) {
	statements := map[storetest.Kind][]string{
		storetest.PostgreSQL: {"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "COMMIT; BEGIN", "ROLLBACK; BEGIN"},
		storetest.SQLite:     {"COMMIT", "ROLLBACK", "COMMIT; BEGIN"},
		storetest.MariaDB: {
			"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "BEGIN", "TRUNCATE other", "CREATE OR REPLACE TABLE another (n INT)",
			"ALTER TABLE other COMMENT ''", "LOCK TABLES other WRITE; UNLOCK TABLES", "SET autocommit = 0; SET autocommit = 1",
		},
	}
	at(t, inTurn, func(t *testing.T, r *rig) {
		r.must(t, "CREATE TABLE other (n INT)")
		for _, all := range statements[r.kind] {
			for _, how := range []form{do, doShared} {
				r.reset(t)
				require.NoError(t, r.claim(as(t, older), resource))
				err := r.runOn(as(t, older), resource, how, nowhere, func(ctx context.Context, tx conn) error {
					for one := range strings.SplitSeq(all, "; ") {
						if err := tx.exec(ctx, one); err != nil {
							return err
						}
					}
					if err := r.claim(fence.NewContext(ctx, newer), resource); err != nil {
						return err
					}
					return write(ctx, tx, 0, older)
				})
				require.ErrorIs(t, err, sqlfence.ErrUnknown, "%s: %s", how, all)
				require.ErrorContains(t, err, "the transaction ended while fn ran", "%s: %s", how, all)
			}
		}
	})
}
