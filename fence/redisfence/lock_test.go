package redisfence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// A write is delayed at each of its requests: EVALSHA, and EVAL if the server does not know the script yet. Meanwhile a
// newer holder acts, or a holder of another lock, also with an older token.
func TestMarks_overtakenOnTheWay(t *testing.T) {
	other := &fence.OtherLockError{Resource: "orders", Token: 41, Lock: "accounts", Follows: "ledger"}
	for _, tt := range []struct {
		verb, lock string
		token      fence.Token
		want       error
	}{
		{"Claim", "accounts", 54, &fence.StaleError{Resource: "orders", Token: 41, Highest: 54}},
		{"ClaimRead", "accounts", 54, &fence.StaleError{Resource: "orders", Token: 41, Highest: 54, ByReader: true}},
		{"Claim", "ledger", 30, other},
		{"ClaimRead", "ledger", 30, other},
		{"Move", "ledger", 50, other},
	} {
		for _, way := range []struct{ at, sent string }{
			{"evalsha", "evalsha"}, {"evalsha", "evalsha eval"}, {"eval", "evalsha eval"},
		} {
			t.Run(fmt.Sprintf("%s of %s at %s of %s", tt.verb, tt.lock, way.at, way.sent), func(t *testing.T) {
				c := newClient(t)
				successor, known := newFence(t, c), way.sent == "evalsha"
				require.NoError(t, successor.Claim(as(t, 30), "orders"), "the mark has no name yet")
				if known {
					require.NoError(t, successor.Set(as(t, 1), "other", "other", 1))
				} else {
					require.NoError(t, c.ScriptFlush(t.Context()).Err())
				}
				paused := shared.client(t)
				var sent []string
				paused.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					if strings.HasPrefix(cmd.Name(), "eval") {
						sent = append(sent, cmd.Name())
					}
					if cmd.Name() == way.at {
						v := verbs(successor)[tt.verb]
						require.NoError(t, v.Call(v.Context(ctx, tt.token, tt.lock), "orders"))
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
