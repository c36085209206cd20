package redisfence_test

import (
	"context"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
)

// A payment whose answer was lost is still under way. Its holder reads, does not find the payment and pays again. Under
// the same token both payments are done. Under a new token, claimed before the read, the late payment is refused.
func TestClaim_settlesWhatIsUnknown(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		plain := newClient(t)
		c := shared.client(t)
		f, f2 := newFence(t, c), newFence(t, plain)
		pay := redisfence.Command("DECRBY", "balance", 30)
		_, err := f.Do(as(t, 54), "orders", redisfence.Command("SET", "balance", 100))
		require.NoError(t, err)
		var late []any
		c.AddHook(hook(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			late = cmd.Args()
			return io.ErrUnexpectedEOF
		}))
		_, err = f.Do(as(t, 54), "orders", pay)
		require.ErrorIs(t, err, redisfence.ErrUnknown)

		ctx := as(t, 54)
		if renewed {
			ctx = as(t, 55)
			require.NoError(t, f2.Claim(ctx, "orders"))
		}
		require.Equal(t, "100", get(t, plain, "balance"), "the payment has not arrived")
		_, err = f2.Do(ctx, "orders", pay)
		require.NoError(t, err)
		_, err = plain.Do(t.Context(), late...).Result()
		require.NoError(t, err)
		want := map[bool]string{false: "40", true: "70"}[renewed]
		require.Equal(t, want, get(t, plain, "balance"), "a new token: %t", renewed)
	}
}
