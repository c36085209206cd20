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
		require.Equal(t, err, fence.ReadToken(tt.token).CheckEra(tt.most))
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
