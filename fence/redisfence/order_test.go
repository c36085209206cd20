package redisfence_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// Every order of the steps of two holders gives what the guard in memory gives, and leaves the data of the last write
// that it accepts.
func TestFence_everyOrderOfTwoHolders(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	const older, newer = 41, 54
	type step struct {
		token fence.Token
		write bool
	}
	a := []step{{older, false}, {older, true}, {older, true}, {older, false}}
	b := []step{{newer, false}, {newer, true}, {newer, true}}

	orders := 0
	var interleave func(done, a, b []step)
	interleave = func(done, a, b []step) {
		if len(a) > 0 {
			interleave(append(slices.Clip(done), a[0]), a[1:], b)
		}
		if len(b) > 0 {
			interleave(append(slices.Clip(done), b[0]), a, b[1:])
		}
		if len(a)+len(b) > 0 {
			return
		}
		orders++
		resource := fmt.Sprintf("order %d", orders)
		var model fence.Guard
		var data string
		for i, s := range done {
			var want, got error
			if s.write {
				value := fmt.Sprintf("%d in step %d", s.token, i)
				want = model.Do(resource, s.token, func() error { data = value; return nil })
				got = f.Set(as(t, s.token), resource, resource, value)
			} else {
				want = model.Claim(resource, s.token)
				got = f.Claim(as(t, s.token), resource)
			}
			require.Equal(t, want, got, "%v, step %d", done, i)
		}
		require.Equal(t, data, get(t, c, resource))
		require.Equal(t, model.Marks()[resource].String(), get(t, c, f.MarkKey(resource)))
	}
	interleave(nil, a, b)
	require.Equal(t, 35, orders)
}

// The control: a guard that reads the mark and then writes accepts a write of a holder that was paused in between.
func TestFence_checkThenSetWouldAcceptAStaleWrite(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	require.NoError(t, f.Claim(as(t, 41), "orders"))

	require.NoError(t, f.Check(as(t, 41), "orders")) // and here it is paused
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	require.NoError(t, f.Set(as(t, 54), "orders", "orders", "newer"))
	require.NoError(t, c.Set(t.Context(), "orders", "older", 0).Err())
	require.Equal(t, "older", get(t, c, "orders"), "the naive form has lost the newer write")

	require.NoError(t, f.Set(as(t, 54), "orders", "orders", "newer"))
	requireStale(t, f.Set(as(t, 41), "orders", "orders", "older"), "orders", 41, 54)
	require.Equal(t, "newer", get(t, c, "orders"))
}

// The older holder is held up with its write on the way: at each of the two sendings of a script that the server does
// not know yet, and at the only one of a script that it knows.
func TestFence_writeDelayedOnItsWay(t *testing.T) {
	for _, tt := range []struct{ name, command, sent string }{
		{"unknown script, first sending", "evalsha", "evalsha eval"},
		{"unknown script, second sending", "eval", "evalsha eval"},
		{"known script", "evalsha", "evalsha"},
	} {
		t.Run(tt.name, func(t *testing.T) {
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
					require.NoError(t, successor.Claim(fence.NewContext(ctx, 54), "orders"))
				}
				return next(ctx, cmd)
			}))
			f := newFence(t, paused)
			requireStale(t, f.Set(as(t, 41), "orders", "orders", "older"), "orders", 41, 54)
			require.Equal(t, tt.sent, strings.Join(sent, " "))
			require.Empty(t, get(t, c, "orders"))
		})
	}
}

// A server that has forgotten its scripts, after a restart say, is sent them again by every verb.
func TestFence_forgottenScript(t *testing.T) {
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
func TestFence_resourcesAreIndependent(t *testing.T) {
	f := newFence(t, newClient(t))
	require.NoError(t, f.Claim(as(t, 54), "a"))
	for _, other := range []string{"b", "a/b", "aa", "A", "a:"} {
		require.NoError(t, f.Claim(as(t, 41), other))
	}
	_, err := f.Do(as(t, 41), "a", redisfence.Command("DEL", "a"))
	requireStale(t, err, "a", 41, 54)
}
