package redisfence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// The older holder is held up with its write on the way: at each of the two sendings of a script that the server does
// not know yet, and at the only one of a script that it knows.
func TestMarks_writeDelayedOnItsWay(t *testing.T) {
	for _, tt := range []struct {
		name, command, sent string
		reader              bool // comes after it
	}{
		{"unknown script, first sending", "evalsha", "evalsha eval", false},
		{"unknown script, second sending", "eval", "evalsha eval", false},
		{"known script", "evalsha", "evalsha", false},
		{"unknown script, a reader at the second sending", "eval", "evalsha eval", true},
		{"known script", "evalsha", "evalsha", true},
	} {
		t.Run(fmt.Sprintf("%s, %t", tt.name, tt.reader), func(t *testing.T) {
			c := newClient(t)
			successor := newFence(t, c)
			if tt.name == "known script" {
				require.NoError(t, successor.Set(as(t, 1), "other", "other", 1))
				require.NoError(t, successor.Claim(as(t, 41), "orders"))
			} else {
				require.NoError(t, c.ScriptFlush(t.Context()).Err())
			}
			paused := newClientOf(t, c)
			var sent []string
			paused.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if strings.HasPrefix(cmd.Name(), "eval") {
					sent = append(sent, cmd.Name())
				}
				if cmd.Name() == tt.command {
					claim := successor.Claim
					if tt.reader {
						claim = func(ctx context.Context, resource string) error { return successor.ClaimRead(reading(ctx), resource) }
					}
					require.NoError(t, claim(fence.NewContext(ctx, 54), "orders"))
				}
				return next(ctx, cmd)
			}))
			f := newFence(t, paused)
			want := fence.StaleError{Resource: "orders", Token: 41, Highest: 54, ByReader: tt.reader}
			require.Equal(t, &want, f.Set(as(t, 41), "orders", "orders", "older"))
			require.Equal(t, tt.sent, strings.Join(sent, " "))
			require.Empty(t, get(t, c, "orders"))
		})
	}
}

// A server that has forgotten its scripts, after a restart say, is sent them again by every verb.
func TestMarks_forgottenScript(t *testing.T) {
	c := newClient(t)
	for name, verb := range verbs(newFence(t, c)) {
		for range 2 {
			require.NoError(t, c.ScriptFlush(t.Context()).Err())
			require.NoError(t, verb(as(t, 54), name), name)
		}
	}
}

// newClientOf returns another client of the same server.
func newClientOf(t *testing.T, c *redis.Client) *redis.Client {
	t.Helper()
	other := redis.NewClient(&redis.Options{Addr: c.Options().Addr})
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	return other
}

// Resources are independent, also where one's name is the start of another's.
func TestMarks_resourcesAreIndependent(t *testing.T) {
	f := newFence(t, newClient(t))
	require.NoError(t, f.Claim(as(t, 54), "a"))
	for _, other := range []string{"b", "a/b", "aa", "A", "a:"} {
		require.NoError(t, f.Claim(as(t, 41), other))
	}
	_, err := f.Do(as(t, 41), "a", redisfence.Command("DEL", "a"))
	requireStale(t, err, "a", 41, 54)
}
