package fence_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

func TestToken_CheckEra(t *testing.T) {
	const era = fence.Token(1) << 48
	for _, tt := range []struct {
		token fence.Token
		most  uint16
		want  string
	}{
		{54, 0, ""},
		{15*era + 1, 0, ""},
		{16*era + 1, 0, "token 4503599627370497: its era is 16, want 0 to 15: if this era is in use, raise MaxEra"},
		{1795362355_031277477, 0, "its era is 6378, want 0 to 15"}, // a clock, in nanoseconds
		{math.MaxInt64, 0, "its era is 32767, want 0 to 15"},
		{2*era + 1, 1, "its era is 2, want 0 to 1"},
		{math.MaxInt64, 32767, ""},
	} {
		err := tt.token.CheckEra(tt.most)
		if tt.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.ErrorContains(t, err, tt.want)
	}
	require.NoError(t, fence.CheckMaxEra("a", 32767))
	require.EqualError(t, fence.CheckMaxEra("a: Options.MaxEra", 32768), "a: Options.MaxEra is 32768, want 1 to 32767, or 0 for 15")
}

// A token that was never granted does not become the mark.
func TestGuard_refusesAnAbsurdEra(t *testing.T) {
	var g fence.Guard
	for _, err := range []error{
		g.Claim("r", math.MaxInt64),
		g.Check("r", math.MaxInt64),
		g.Do("r", math.MaxInt64, func() error { panic("it has run") }),
		g.Load(map[string]fence.Token{"r": math.MaxInt64}),
	} {
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.ErrorContains(t, err, "9223372036854775807")
		require.ErrorContains(t, err, "MaxEra")
	}
	require.NoError(t, g.Claim("r", 1), "the mark is unchanged")

	require.EqualError(t, (&fence.Guard{MaxEra: 32768}).Claim("a", 1), "fence: Guard.MaxEra is 32768, want 1 to 32767, or 0 for 15")

	// If such a token was accepted, the next era accepts real tokens again.
	low := fence.Guard{MaxEra: 20}
	require.NoError(t, low.Claim("r", 20<<48|7))
	require.ErrorIs(t, low.Claim("r", 54), fence.ErrStale)
	next := fence.Guard{MaxEra: 21}
	require.NoError(t, next.Load(low.Marks()))
	require.NoError(t, next.Claim("r", 21<<48|54))
}
