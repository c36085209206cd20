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

// silent is a client whose every attempt to send something fails the test.
func silent(t *testing.T) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.AddHook(hook(func(context.Context, redis.Cmder, redis.ProcessHook) error {
		t.Error("something was sent")
		return errors.New("not to be sent")
	}))
	return c
}

// hook is what happens to a command in place of being sent; it may call next to send it.
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

func TestNew_refusesBadOptions(t *testing.T) {
	c := silent(t)
	for _, tt := range []struct {
		opts redisfence.Options
		want string
	}{
		{redisfence.Options{Prefix: "a{b"}, `redisfence: Options.Prefix is "a{b", want UTF-8 without NUL and braces`},
		{redisfence.Options{Prefix: "a\x00"}, `redisfence: Options.Prefix is "a\x00", want UTF-8 without NUL and braces`},
		{
			redisfence.Options{Prefix: strings.Repeat("p", 1025)},
			"redisfence: Options.Prefix has 1025 bytes, want 1 to 1024",
		},
		{redisfence.Options{MaxEra: 32768}, "redisfence: Options.MaxEra is 32768, want 1 to 32767, or 0 for 15"},
		{redisfence.Options{WaitReplicas: -1}, "redisfence: Options.WaitReplicas is -1, want 0 to 1000"},
		{redisfence.Options{WaitReplicas: 1001}, "redisfence: Options.WaitReplicas is 1001, want 0 to 1000"},
		{
			redisfence.Options{WaitTimeout: -time.Second},
			"redisfence: Options.WaitTimeout is -1s, want whole milliseconds, 1ms to 1m0s",
		},
		{
			redisfence.Options{WaitTimeout: 1500 * time.Microsecond},
			"redisfence: Options.WaitTimeout is 1.5ms, want whole milliseconds, 1ms to 1m0s",
		},
		{
			redisfence.Options{WaitTimeout: time.Hour},
			"redisfence: Options.WaitTimeout is 1h0m0s, want whole milliseconds, 1ms to 1m0s",
		},
		{
			redisfence.Options{WaitReplicas: 1, WaitTimeout: 30 * time.Second},
			"redisfence: Options.WaitTimeout is 30s, want less than the client's ReadTimeout, 5s",
		},
	} {
		t.Run(tt.want, func(t *testing.T) {
			f, err := redisfence.New(c, tt.opts)
			require.EqualError(t, err, tt.want)
			require.Nil(t, f)
		})
	}
	_, err := redisfence.New(c, redisfence.Options{WaitTimeout: 30 * time.Second})
	require.NoError(t, err, "without WaitReplicas it means nothing")
}

func TestNew_refusesOtherClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	for _, tt := range []struct {
		client redis.UniversalClient
		want   string
	}{
		{nil, "redisfence: client is nil, want a *redis.Client or a *redis.ClusterClient"},
		{(*redis.Client)(nil), "redisfence: client is nil, want a *redis.Client or a *redis.ClusterClient"},
		{(*redis.ClusterClient)(nil), "redisfence: client is nil, want a *redis.Client or a *redis.ClusterClient"},
		{ring, "redisfence: client is a *redis.Ring, want a *redis.Client or a *redis.ClusterClient"},
	} {
		f, err := redisfence.New(tt.client, redisfence.Options{})
		require.EqualError(t, err, tt.want)
		require.Nil(t, f)
	}
}

// reading returns a context whose token is a reader's, of the same lock.
func reading(ctx context.Context) context.Context {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return ctx
	}
	lock, named := fence.LockFromContext(ctx)
	ctx = fence.NewReadContext(ctx, fence.ReadToken(t))
	if named {
		ctx = fence.WithLock(ctx, lock)
	}
	return ctx
}

// verbs are all that a resource and a token are given to.
func verbs(f *redisfence.Marks) map[string]func(ctx context.Context, resource string) error {
	script := redisfence.NewScript("return redis.call('SET', KEYS[1], ARGV[1])")
	return map[string]func(ctx context.Context, resource string) error{
		"Claim": f.Claim,
		"Check": f.Check,
		"Move": func(ctx context.Context, r string) error {
			if _, named := fence.LockFromContext(ctx); !named {
				ctx = fence.WithLock(ctx, "accounts")
			}
			return f.Move(ctx, r)
		},
		"ClaimRead": func(ctx context.Context, r string) error { return f.ClaimRead(reading(ctx), r) },
		"CheckRead": func(ctx context.Context, r string) error { return f.CheckRead(reading(ctx), r) },
		"Set":       func(ctx context.Context, r string) error { return f.Set(ctx, r, "data", "new") },
		"Do": func(ctx context.Context, r string) error {
			_, err := f.Do(ctx, r, redisfence.Command("SET", "data", "new"))
			return err
		},
		"Run": func(ctx context.Context, r string) error {
			_, err := f.Run(ctx, r, script, []string{"data"}, "new")
			return err
		},
	}
}

func TestMarks_refusesBadInputBeforeItSends(t *testing.T) {
	f := newFence(t, silent(t))
	ended, cancel := context.WithCancelCause(as(t, 54))
	cancel(errors.New("the lock was lost"))
	const (
		noToken = `"orders": fence: invalid token: the context carries none, want the context of a `
		braces  = "want UTF-8 without NUL and braces"
	)
	for _, tt := range []struct {
		name     string
		ctx      context.Context //nolint:containedctx // A row's input.
		resource string
		want     string
		is       error
	}{
		{"no token", t.Context(), "orders", noToken, fence.ErrInvalidToken},
		{"token 0", as(t, 0), "orders", noToken, fence.ErrInvalidToken},
		{"token -1", as(t, -1), "orders", noToken, fence.ErrInvalidToken},
		{"token of revision 0", as(t, 1<<48), "orders", noToken, fence.ErrInvalidToken},
		{"empty", as(t, 54), "", "redisfence: resource is empty, want 1 to 1024 bytes", nil},
		{"too long", as(t, 54), strings.Repeat("r", 1025), "redisfence: resource has 1025 bytes, want 1 to 1024", nil},
		{"brace", as(t, 54), "a}b", `redisfence: resource is "a}b", ` + braces, nil},
		{"other brace", as(t, 54), "{a", `redisfence: resource is "{a", ` + braces, nil},
		{"NUL", as(t, 54), "a\x00", `redisfence: resource is "a\x00", ` + braces, nil},
		{"not UTF-8", as(t, 54), "a\xff", `redisfence: resource is "a\xff", ` + braces, nil},
		{
			"context has ended", ended, "orders",
			`"orders": nothing was sent: context canceled: the lock was lost`, context.Canceled,
		},
	} {
		for name, verb := range verbs(f) {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				err := verb(tt.ctx, tt.resource)
				require.ErrorContains(t, err, tt.want)
				require.NotErrorIs(t, err, redisfence.ErrUnknown)
				if tt.is != nil {
					require.ErrorIs(t, err, tt.is)
				}
			})
		}
	}
}

func TestMarks_zeroIsRefused(t *testing.T) {
	const want = "redisfence: Marks is nil or zero, want one created by New"
	for _, f := range []*redisfence.Marks{nil, {}} {
		for name, verb := range verbs(f) {
			require.EqualError(t, verb(as(t, 54), "orders"), want, name)
		}
		_, err := f.Probe(t.Context())
		require.EqualError(t, err, want)
	}
}

func TestMarks_longestName(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	r := strings.Repeat("r", 1024)
	require.NoError(t, f.Claim(as(t, 54), r))
	requireStale(t, f.Check(as(t, 41), r), r, 41, 54)
}

func TestOptions_Prefix(t *testing.T) {
	c := newClient(t)
	f, err := redisfence.New(c, redisfence.Options{Prefix: "marks/"})
	require.NoError(t, err)
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	require.Equal(t, "marks/{orders}", f.MarkKey("orders"))
	require.Equal(t, "54", get(t, c, "marks/{orders}"))
	require.NoError(t, newFence(t, c).Check(as(t, 41), "orders"), "another prefix has other marks")
	require.ErrorContains(t, f.Set(as(t, 54), "orders", "marks/x", 1),
		`want a key without the prefix of the marks, "marks/"`)
}

// A token that equals the mark is accepted, or the holder's second write would fence the holder itself.
func TestMarks_everyVerbGoesByTheMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	for name, verb := range verbs(f) {
		if strings.HasSuffix(name, "Read") {
			continue // see TestMarks_readers
		}
		t.Run(name, func(t *testing.T) {
			writes := name != "Claim" && name != "Check" && name != "Move"
			mark := func() string { return get(t, c, f.MarkKey(name)) }
			for _, tt := range []struct {
				before, after string
				token         fence.Token
				stale         bool
			}{
				{"", "54", 54, false},
				{"41", "54", 54, false},
				{"54", "54", 54, false},
				{"55", "55", 54, true},
			} {
				require.NoError(t, c.FlushAll(t.Context()).Err())
				if tt.before != "" {
					require.NoError(t, c.Set(t.Context(), f.MarkKey(name), tt.before, 0).Err())
				}
				err := verb(as(t, tt.token), name)
				if tt.stale {
					requireStale(t, err, name, tt.token, 55)
					require.Empty(t, get(t, c, "data"))
				} else {
					require.NoError(t, err)
					require.Equal(t, writes, get(t, c, "data") == "new")
				}
				switch {
				case name == "Check":
					tt.after = tt.before
				case name == "Move" && !tt.stale:
					tt.after += " 0 accounts"
				}
				require.Equal(t, tt.after, mark())
			}
		})
	}
}

// A mark that has got an expiry by mistake loses it with the next claim, and with each write that raises it.
func TestClaim_takesAnExpiryOffTheMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	for _, next := range []fence.Token{54, 55} {
		require.NoError(t, c.Expire(t.Context(), f.MarkKey("orders"), time.Hour).Err())
		require.NoError(t, f.Claim(as(t, next), "orders"))
		require.Equal(t, time.Duration(-1), c.TTL(t.Context(), f.MarkKey("orders")).Val())
	}
	require.NoError(t, f.ClaimRead(reading(as(t, 60)), "orders"))
	for _, next := range []fence.Token{60, 58, 61} {
		require.NoError(t, c.Expire(t.Context(), f.MarkKey("orders"), time.Hour).Err())
		require.NoError(t, f.ClaimRead(reading(as(t, next)), "orders"))
		require.Equal(t, time.Duration(-1), c.TTL(t.Context(), f.MarkKey("orders")).Val())
	}
	require.Equal(t, "55 61", get(t, c, f.MarkKey("orders")))
	for range 2 {
		require.NoError(t, f.Move(of(t, "accounts", 61), "orders"))
		require.Equal(t, time.Duration(-1), c.TTL(t.Context(), f.MarkKey("orders")).Val())
		require.NoError(t, c.Expire(t.Context(), f.MarkKey("orders"), time.Hour).Err())
	}
}
