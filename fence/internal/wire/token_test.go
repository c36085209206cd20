package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "54", "054", "54,54", "54, 55", "+54", "54 ", "-1", "9223372036854775807", "54\x0054"} {
		f.Add(s, "", false)
		f.Add(s, s, true)
	}
	f.Fuzz(func(t *testing.T, first, second string, two bool) {
		values := []string{first, second}
		if !two {
			values = values[:1]
		}
		got, err := wire.Parse("field", "Token", values)
		if err != nil {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.Zero(t, got)
			require.Less(t, len(err.Error()), 200)
			require.False(t, strings.ContainsAny(err.Error(), "\n\x00"))
			return
		}
		require.False(t, two)
		require.True(t, got.Valid())
		require.Equal(t, first, got.String())
	})
}
