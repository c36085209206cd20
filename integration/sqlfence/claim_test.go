package sqlfence_test

import (
	"context"
	"math"
	"testing"
	"time"

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

// On SQLite a transaction that has read does not wait for the write lock. A claim waits, also where there is a mark.
func TestMarks_Claim_waitsForTheOneWriter(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			r := newRig(t, place{kind: storetest.SQLite, journal: journal})
			once := r.with(t, sqlfence.Options{Attempts: 1})
			require.NoError(t, once.claim(as(t, older), resource))
			token := newer
			for name, claim := range map[string]func() error{
				"Claim":     func() error { return once.claim(as(t, token), resource) },
				"ClaimRead": func() error { return once.claimRead(asReader(t, token), resource) },
				"ClaimPath": func() error { return once.claimPath(as(t, token), resource) },
				"Do":        func() error { return once.do(as(t, token), resource, false, nothing) },
			} {
				token++
				claimed := make(chan error, 1)
				require.NoError(t, r.do(as(t, older), "another", false, func(context.Context, conn) error {
					go func() { claimed <- claim() }()
					select {
					case err := <-claimed:
						require.NoError(t, err, "%s has not waited", name)
					case <-time.After(300 * time.Millisecond): // SQLite does not show that somebody waits
					}
					return nil
				}))
				require.NoError(t, <-claimed, name)
			}
		})
	}
}
