package sqlfence_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// There are two ways out after a token was accepted that was never granted: the next era, and lower marks by hand.
func TestMarks_absurdToken(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		all := r.with(t, sqlfence.Options{MaxEra: 32767})
		require.NoError(t, all.claim(as(t, 20<<48|1), resource))
		require.ErrorIs(t, r.claim(as(t, older), resource), fence.ErrStale)
		require.NoError(t, all.claim(as(t, 21<<48|1), resource), "in the next era")
		require.NoError(t, all.claim(as(t, math.MaxInt64), resource))
		require.NoError(t, all.claimRead(asReader(t, math.MaxInt64), resource))

		names := "'accounts'"
		if r.kind == storetest.PostgreSQL {
			names = `'accounts', E'\x01accounts'`
		}
		r.must(t, "UPDATE leasefence_marks SET token = 10, read_token = 10 WHERE resource IN ("+names+")")
		for _, how := range forms {
			require.NoError(t, r.increment(as(t, older), how, nowhere), "%s", how)
		}
		require.NoError(t, r.claimRead(asReader(t, older), resource))
		require.NoError(t, r.claim(as(t, newer), resource))
	})
}

// On SQLite a transaction that has read does not wait for the write lock, but fails if another has written since. So a
// claim takes the lock before it reads, also where there is a mark.
func TestMarks_Claim_locksBeforeItReads(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			r := newRig(t, place{kind: storetest.SQLite, journal: journal})
			require.NoError(t, r.claim(as(t, older), resource))
			statements, raised := 0, 0
			x := r.hooked(t, sqlfence.Options{}, func(request string) error {
				statements++
				switch {
				case request == "begin":
					statements = 0
				case strings.HasPrefix(request, "UPDATE") && statements > 1: // it is not the lock itself
					raised++
					r.mustBeShut(t)
				}
				return nil
			})
			require.NoError(t, x.claim(as(t, older+1), resource))
			require.NoError(t, x.claimRead(asReader(t, older+2), resource))
			require.NoError(t, x.claimPath(as(t, older+3), resource))
			require.NoError(t, x.do(as(t, older+4), resource, false, nothing))
			require.Equal(t, 4, raised)
		})
	}
}
