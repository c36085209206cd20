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

// lossy is a connection that drops the server's next answer if lose is set. The request has arrived.
type lossy struct {
	net.Conn
	lose *atomic.Bool
}

func (l lossy) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 && l.lose.Swap(false) {
		return 0, errors.Join(io.ErrUnexpectedEOF, l.Close())
	}
	return n, err
}

// By default the client repeats a command whose answer was lost. It repeats none of ours, not even a claim: the server
// may refuse the repetition, for example as a replica, although the claim is done. That holds for the script's hash, and
// for its text, which is sent to a server that does not know the hash.
func TestMarks_sentOnceThoughTheAnswerIsLost(t *testing.T) {
	lose, lost := new(atomic.Bool), ""
	c := redis.NewClient(&redis.Options{
		Addr: newClient(t).Options().Addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return lossy{conn, lose}, err
		},
		MinRetryBackoff: time.Millisecond,
	})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		lose.Store(cmd.Name() == lost)
		return next(ctx, cmd)
	}))
	for name, v := range verbs(newFence(t, c)) {
		for _, command := range []string{"eval", "evalsha"} {
			if command == "eval" {
				require.NoError(t, c.ScriptFlush(t.Context()).Err())
			}
			require.NoError(t, c.ConfigResetStat(t.Context()).Err())
			lost = command
			require.ErrorIs(t, call(t, v, 54, name), redisfence.ErrUnknown, name)
			lost = ""
			require.Equal(t, 1, commands(t, c)[1], "the script has run once")
			require.NoError(t, call(t, v, 54, name), "the caller may repeat it")
		}
	}
}

// No answer that the guard's script cannot give counts as an acceptance.
func TestMarks_strangeAnswer(t *testing.T) {
	get := func(answer any) *redisfence.Marks {
		return newFence(t, hooked(t, func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.(interface{ SetVal(any) }).SetVal(answer)
			return nil
		}))
	}
	for _, answer := range []any{
		nil, "ok", int64(1),
		[]any{},
		[]any{"OK"},
		[]any{nil, nil},
		[]any{"ok", int64(0), "more"},
		[]any{"more", "x"},
		map[any]any{"ok": nil},
	} {
		for name, v := range verbs(get(answer)) {
			require.ErrorIs(t, call(t, v, 54, "orders"), redisfence.ErrUnknown, "%s: %v", name, answer)
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
		require.ErrorIs(t, get([]any{"ok", payload}).Set(as(t, 54), "orders", "a", 1), redisfence.ErrUnknown, "%v", payload)
	}
}

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
