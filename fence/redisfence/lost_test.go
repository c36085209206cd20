package redisfence_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
)

// lossy is a connection that drops the next answers of the server. The requests have arrived.
type lossy struct {
	net.Conn
	lose *atomic.Int64 // the number of answers to drop
}

func (l lossy) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 && l.lose.Load() > 0 {
		l.lose.Add(-1)
		return 0, errors.Join(io.ErrUnexpectedEOF, l.Close())
	}
	return n, err
}

// lossyClient returns a connected client of the shared server, which knows all scripts. The number is that of answers
// to drop.
func lossyClient(t *testing.T) (*redis.Client, *atomic.Int64) {
	t.Helper()
	addr := newClient(t).Options().Addr
	lose := new(atomic.Int64)
	c := redis.NewClient(&redis.Options{
		Addr: addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return lossy{conn, lose}, err
		},
		MinRetryBackoff: time.Millisecond,
	})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	for name, verb := range calls(newFence(t, c)) {
		require.NoError(t, verb(as(t, 1), "warm "+name))
	}
	return c, lose
}

// By default the client retries a command whose answer was lost. Only the caller may repeat a write.
func TestDo_isSentOnceThoughTheAnswerIsLost(t *testing.T) {
	c, lose := lossyClient(t)
	f := newFence(t, c)
	push := func() error {
		_, err := f.Do(as(t, 54), "orders", redisfence.Command("RPUSH", "log", "x"))
		return err
	}
	lose.Store(1)
	err := push()
	require.ErrorIs(t, err, redisfence.ErrUnknown)
	require.ErrorIs(t, err, net.ErrClosed)
	require.EqualValues(t, 1, c.LLen(t.Context(), "log").Val(), "the script ran once")

	require.NoError(t, push(), "the caller may repeat it")
	require.EqualValues(t, 2, c.LLen(t.Context(), "log").Val())

	lose.Store(1)
	require.ErrorIs(t, push(), redisfence.ErrUnknown)
	require.NoError(t, f.Claim(as(t, 55), "orders"))
	requireStale(t, push(), "orders", 54, 55)
	require.EqualValues(t, 3, c.LLen(t.Context(), "log").Val())
}

// If the server has lost its scripts, the text is sent, and the client must not retry that either.
func TestDo_isSentOnceAfterAScriptFlush(t *testing.T) {
	c, lose := lossyClient(t)
	f := newFence(t, c)
	require.NoError(t, c.ScriptFlush(t.Context()).Err())
	c.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "eval" {
			lose.Store(1)
		}
		return next(ctx, cmd)
	}))
	_, err := f.Do(as(t, 54), "orders", redisfence.Command("RPUSH", "log", "x"))
	require.ErrorIs(t, err, redisfence.ErrUnknown)
	require.EqualValues(t, 1, c.LLen(t.Context(), "log").Val())
}

// The client repeats nothing, not even a claim: the server may refuse the repetition, for example as a replica, although
// the claim is done.
func TestMarks_sentOnceThoughTheAnswerIsLost(t *testing.T) {
	c, lose := lossyClient(t)
	for name, verb := range calls(newFence(t, c)) {
		require.NoError(t, c.Ping(t.Context()).Err(), "the client is connected")
		lose.Store(1)
		require.ErrorIs(t, verb(as(t, 54), name), redisfence.ErrUnknown, name)
		require.NoError(t, verb(as(t, 54), name), "the caller may repeat it")
	}
}

func TestMarks_serverGone(t *testing.T) {
	port, err := freePort()
	require.NoError(t, err)
	addr := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	c := redis.NewClient(&redis.Options{Addr: addr.String(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	for name, verb := range calls(newFence(t, c)) {
		require.ErrorIs(t, verb(as(t, 54), "orders"), redisfence.ErrUnknown, name)
	}
}

// No answer that the guard's script cannot give counts as an acceptance.
func TestMarks_strangeAnswer(t *testing.T) {
	for _, answer := range []any{
		nil, "ok", int64(1),
		[]any{},
		[]any{"OK"},
		[]any{nil, nil},
		[]any{"ok", int64(0), "more"},
		[]any{"stale", "x"},
		[]any{"stale"},
		[]any{"stale", int64(55)},
		[]any{"other"},
		[]any{"other", ""},
		[]any{"other", "accounts"}, // its own
		[]any{"other", int64(1)},
		map[any]any{"ok": nil},
	} {
		c := silentWith(t, answer)
		for name, verb := range calls(newFence(t, c)) {
			require.ErrorIs(t, verb(of(t, "accounts", 54), "orders"), redisfence.ErrUnknown, "%s: %v", name, answer)
		}
	}
	for _, payload := range []any{
		nil, "OK",
		[]any{},
		[]any{int64(0), nil},
		[]any{int64(0), []any{}},
		[]any{int64(2), "ERR of which?"},
		[]any{int64(-1), "ERR"},
		[]any{int64(0), "ERR"},
		slices.Repeat([]any{"x"}, 2),
	} {
		f := newFence(t, silentWith(t, []any{"ok", payload}))
		require.ErrorIs(t, f.Set(as(t, 54), "orders", "a", 1), redisfence.ErrUnknown, "%v", payload)
	}
}

// silentWith returns a client that gets the same answer to every script, without a server.
func silentWith(t *testing.T, answer any) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.AddHook(hook(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
		cmd.(interface{ SetVal(any) }).SetVal(answer)
		return nil
	}))
	return c
}

// Every verb sends its script again to a server that has lost it, for example by a restart.
func TestMarks_forgottenScript(t *testing.T) {
	c := newClient(t)
	for name, verb := range calls(newFence(t, c)) {
		for range 2 {
			require.NoError(t, c.ScriptFlush(t.Context()).Err())
			require.NoError(t, verb(as(t, 54), name), name)
		}
	}
}
