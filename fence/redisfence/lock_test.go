package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// A write is delayed at each of its requests: EVALSHA, and EVAL if the server does not know the script yet. Meanwhile a
// newer holder acts, or a holder of another lock, also with an older token.
func TestMarks_overtakenOnTheWay(t *testing.T) {
	other := &fence.OtherLockError{Resource: "orders", Token: 41, Lock: "accounts", Follows: "ledger"}
	for name, tt := range map[string]struct {
		comes func(f *redisfence.Marks) error
		want  error
	}{
		"a newer claim": {
			func(f *redisfence.Marks) error { return f.Claim(of(t, "accounts", 54), "orders") },
			&fence.StaleError{Resource: "orders", Token: 41, Highest: 54},
		},
		"a newer reader's claim": {
			func(f *redisfence.Marks) error { return f.ClaimRead(reading(of(t, "accounts", 54)), "orders") },
			&fence.StaleError{Resource: "orders", Token: 41, Highest: 54, ByReader: true},
		},
		"another lock's claim":  {func(f *redisfence.Marks) error { return f.Claim(of(t, "ledger", 50), "orders") }, other},
		"an older one":          {func(f *redisfence.Marks) error { return f.Claim(of(t, "ledger", 30), "orders") }, other},
		"another lock's reader": {func(f *redisfence.Marks) error { return f.ClaimRead(reading(of(t, "ledger", 30)), "orders") }, other},
		"another lock's write":  {func(f *redisfence.Marks) error { return f.Set(of(t, "ledger", 30), "orders", "ledger", 1) }, other},
		"a move":                {func(f *redisfence.Marks) error { return f.Move(of(t, "ledger", 50), "orders") }, other},
		"a move of a resource's name": {func(f *redisfence.Marks) error {
			return errors.Join(f.Claim(of(t, "accounts", 40), "orders"), f.Move(of(t, "ledger", 40), "orders"))
		}, other},
	} {
		for _, way := range []struct{ at, sent string }{{"evalsha", "evalsha"}, {"evalsha", "evalsha eval"}, {"eval", "evalsha eval"}} {
			t.Run(fmt.Sprintf("%s at %s of %s", name, way.at, way.sent), func(t *testing.T) {
				c := newClient(t)
				successor, known := newFence(t, c), way.sent == "evalsha"
				require.NoError(t, successor.Claim(as(t, 30), "orders"), "the mark has no name yet")
				if known {
					require.NoError(t, successor.Set(as(t, 1), "other", "other", 1))
				} else {
					require.NoError(t, c.ScriptFlush(t.Context()).Err())
				}
				paused := newClientOf(t, c)
				var sent []string
				paused.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					if strings.HasPrefix(cmd.Name(), "eval") {
						sent = append(sent, cmd.Name())
					}
					if cmd.Name() == way.at {
						require.NoError(t, tt.comes(successor))
						if !known && way.at == "evalsha" { // the newcomer may have sent the script
							require.NoError(t, c.ScriptFlush(ctx).Err())
						}
					}
					return next(ctx, cmd)
				}))
				err := newFence(t, paused).Set(of(t, "accounts", 41), "orders", "data", "late")
				require.Equal(t, tt.want, err)
				require.Equal(t, way.sent, strings.Join(sent, " "))
				require.Empty(t, get(t, c, "data"))
			})
		}
	}
}
