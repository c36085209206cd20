package redisfence_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// hooked returns a client whose commands run h.
func hooked(t *testing.T, h hook) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.AddHook(h)
	return c
}

// silent returns a client that fails the test if anything is sent.
func silent(t *testing.T) *redis.Client {
	t.Helper()
	return hooked(t, func(context.Context, redis.Cmder, redis.ProcessHook) error {
		t.Error("something was sent")
		return errors.New("not to be sent")
	})
}

// hook runs instead of sending a command; it may call next to send the command.
type hook func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := h(ctx, cmd, next)
		cmd.SetErr(err)
		return err
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestNew_refuses(t *testing.T) {
	c := silent(t)
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	for _, tt := range []struct {
		client redis.UniversalClient
		opts   redisfence.Options
		want   string
	}{
		{c, redisfence.Options{Prefix: "a{b"}, `Options.Prefix is "a{b", want UTF-8 without NUL and braces`},
		{c, redisfence.Options{Prefix: strings.Repeat("p", 1025)}, "Options.Prefix has 1025 bytes, want 1 to 1024"},
		{c, redisfence.Options{MaxEra: 32768}, "Options.MaxEra is 32768, want 1 to 32767, or 0 for 15"},
		{nil, redisfence.Options{}, "client is nil, want a *redis.Client or a *redis.ClusterClient"},
		{(*redis.Client)(nil), redisfence.Options{}, "client is nil, want a *redis.Client or a *redis.ClusterClient"},
		{(*redis.ClusterClient)(nil), redisfence.Options{}, "client is nil, want a *redis.Client or a *redis.ClusterClient"},
		{ring, redisfence.Options{}, "client is a *redis.Ring, want a *redis.Client or a *redis.ClusterClient"},
	} {
		f, err := redisfence.New(tt.client, tt.opts)
		require.EqualError(t, err, "redisfence: "+tt.want)
		require.Nil(t, f)
	}
}

func TestMarks_zeroIsRefused(t *testing.T) {
	const want = "redisfence: Marks is nil or zero, want one created by New"
	for _, f := range []*redisfence.Marks{nil, {}} {
		for name, v := range verbs(f) {
			require.EqualError(t, call(t, v, 54, "orders"), want, name)
		}
		_, err := f.Probe(t.Context())
		require.EqualError(t, err, want)
	}
}

func TestOptions_Prefix(t *testing.T) {
	c := newClient(t)
	f, err := redisfence.New(c, redisfence.Options{Prefix: "marks/"})
	require.NoError(t, err)
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	require.Equal(t, "marks/{orders}", f.MarkKey("orders"))
	require.Equal(t, "54 0", get(t, c, "marks/{orders}"))
	require.NoError(t, newFence(t, c).Check(as(t, 41), "orders"), "another prefix has other marks")
	require.ErrorContains(t, f.Set(as(t, 54), "orders", "marks/x", 1),
		`want a key without the prefix of the marks, "marks/"`)
}

// Each accepted call but Check removes an expiry that was set on the mark by mistake, also if the mark need not rise.
func TestMarks_takeAnExpiryOffTheMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	for name, v := range verbs(f) {
		require.NoError(t, f.Claim(of(t, "accounts", 54), name))
		for _, token := range []fence.Token{54, 55} {
			require.NoError(t, c.Expire(t.Context(), f.MarkKey(name), time.Hour).Err())
			require.NoError(t, call(t, v, token, name))
			require.Equal(t, v.Looks, c.TTL(t.Context(), f.MarkKey(name)).Val() > 0, name)
		}
	}
}
