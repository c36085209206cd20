package fencetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// ruled returns a store in memory that follows the rule or, with oneMark, has one mark, which readers raise too.
func ruled(oneMark bool) Verbs {
	all := map[string]Marks{}
	verb := func(v Verb) func(context.Context, string) error {
		return func(ctx context.Context, resource string) error {
			token, ok := fence.FromContext(ctx)
			if read, reads := fence.ReadFromContext(ctx); v.Reads {
				token, ok = fence.Token(read), reads
			}
			if !ok {
				return fence.ErrInvalidToken
			}
			after, err := all[resource].After(v, token, "", false)
			if oneMark {
				after = Marks{Write: max(after.Write, after.Read)}
			}
			all[resource] = after
			return err
		}
	}
	writes, reads := verb(Verb{}), verb(Verb{Reads: true})
	return Verbs{Claim: writes, Check: writes, ClaimRead: reads, CheckRead: reads}
}

// The histories have enough of each outcome. They find no fault in a store that follows the rule, and faults in one
// with a single mark.
func TestGrants(t *testing.T) {
	for _, oneMark := range []bool{false, true} {
		random, tally, faults := rand.New(rand.NewPCG(1, 2)), map[string]int{}, 0
		for i := range 4 * fewHistories {
			if newHistory(ruled(oneMark), random, fmt.Sprint(i), tally).play(t.Context()) != nil {
				faults++
			}
		}
		if oneMark {
			require.Positive(t, faults)
			continue
		}
		require.Zero(t, faults)
		require.Len(t, tally, 5)
		for outcome, n := range tally {
			require.Greater(t, n, 100, "too few: %s", outcome)
		}
	}
}
