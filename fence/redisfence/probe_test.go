package redisfence_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
)

func settings(found []redisfence.Finding) []string {
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.Setting
	}
	return names
}

func TestProbe_findings(t *testing.T) {
	s := newServer(t, "--appendonly", "yes")
	c := s.client(t)
	for _, tt := range []struct{ setting, value, found string }{
		{"appendfsync", "everysec", "appendfsync"},
		{"appendfsync", "always", ""},
		{"maxmemory-policy", "allkeys-lru", "maxmemory_policy"},
		{"maxmemory-policy", "volatile-lru", ""}, // only keys with an expiry
		{"no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite"},
	} {
		require.NoError(t, c.ConfigSet(t.Context(), tt.setting, tt.value).Err())
		found, err := newFence(t, c).Probe(t.Context())
		require.NoError(t, err)
		if tt.found == "" {
			require.Empty(t, found, tt)
			continue
		}
		require.Len(t, found, 1, tt)
		require.Contains(t, found[0].String(), s.addr+": "+tt.found+" is "+tt.value+": ")
	}
}

// Where CONFIG is forbidden, as in many hosted services, Probe still reports the other settings.
func TestProbe_withoutConfig(t *testing.T) {
	s := newServer(t, "--appendonly", "yes", "--appendfsync", "always")
	require.NoError(t, s.client(t).ACLSetUser(t.Context(), "app", "on", "nopass", "+@all", "-config", "~*", "&*").Err())
	c := redis.NewClient(&redis.Options{Addr: s.addr, Username: "app", Password: "any"})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	found, err := newFence(t, c).Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"appendfsync"}, settings(found))
	require.Equal(t, "unknown", found[0].Value)
}

// What a server does not report counts as unsafe.
func TestProbe_nothingReported(t *testing.T) {
	c := hooked(t, func(context.Context, redis.Cmder, redis.ProcessHook) error { return nil })
	found, err := newFence(t, c).Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled", "connected_slaves", "maxmemory_policy", "role"}, settings(found))
	require.Equal(t, "unknown", found[2].Value)
}

func TestProbe_serverGone(t *testing.T) {
	c := hooked(t, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error { return next(ctx, cmd) })
	found, err := newFence(t, c).Probe(t.Context())
	require.ErrorContains(t, err, "redisfence: probe 127.0.0.1:1: ")
	require.Nil(t, found)
}
