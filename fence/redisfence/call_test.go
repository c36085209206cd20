package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

func TestDo(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	address, err := url.Parse("http://a/b")
	require.NoError(t, err)
	epoch := time.Unix(0, 0).UTC()
	replies, err := f.Do(as(t, 54), "orders",
		redisfence.Command("SET", "a", "text\x00\r\n"),
		redisfence.Command("GET", "a"),
		redisfence.Command("GET", "missing"),
		redisfence.Command("HSET", "h", "x", 1, "y", 2.5),
		redisfence.Command("HGETALL", "h"),
		redisfence.Command("INCRBY", "n", 7),
		redisfence.Command("DEL", "n"),
		redisfence.Command("RPUSH", "list", "s", []byte{0, 255},
			1, int8(2), int16(3), int32(4), int64(5), uint(6), uint8(7), uint16(8), uint32(9), uint64(10),
			float32(1.5), 2.5, true, false, epoch, &epoch, time.Second, address),
	)
	require.NoError(t, err)
	require.Equal(t, []any{
		"OK", "text\x00\r\n", nil, int64(2), []any{"x", "1", "y", "2.5"}, int64(7), int64(1), int64(20),
	}, replies)
	require.Equal(t, []string{
		"s", "\x00\xff", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "1.5", "2.5", "1", "0", "1970-01-01T00:00:00Z",
		"1970-01-01T00:00:00Z", "1000000000", "http://a/b",
	}, c.LRange(t.Context(), "list", 0, -1).Val())

	largest := redisfence.Command("RPUSH", "list", slices.Repeat([]any{"x"}, 1000)...)
	replies, err = f.Do(as(t, 54), "orders", append(slices.Repeat([]redisfence.Op{redisfence.Command("INCR", "n")}, 999), largest)...)
	require.NoError(t, err)
	require.Len(t, replies, 1000)
	require.Equal(t, []any{int64(999), int64(1020)}, replies[998:])

	count := redisfence.NewScript("return {#KEYS, #ARGV}")
	sizes, err := f.Run(as(t, 54), "orders", count, slices.Repeat([]string{"n"}, 1000), slices.Repeat([]any{1}, 1000)...)
	require.NoError(t, err)
	require.Equal(t, []any{int64(1000), int64(1000)}, sizes)
}

type unwilling struct{}

func (unwilling) MarshalBinary() ([]byte, error) { return nil, errors.New("it does not want to") }

func TestMarks_refusesBadCommandsBeforeItSends(t *testing.T) {
	f := newFence(t, silent(t))
	ok := redisfence.Command("SET", "a", 1)
	script := redisfence.NewScript("")
	do := func(ops ...redisfence.Op) func() error {
		return func() error { _, err := f.Do(as(t, 54), "orders", ops...); return err }
	}
	run := func(s *redisfence.Script, keys []string, args ...any) func() error {
		return func() error { _, err := f.Run(as(t, 54), "orders", s, keys, args...); return err }
	}
	const (
		covered = ` is "fence:{orders}", want a key without the prefix of the marks, "fence:"`
		kinds   = ", want a string, bytes, a number, a bool, a time, a duration or an encoding.BinaryMarshaler"
	)
	for _, tt := range []struct {
		call func() error
		want string
	}{
		{do(), "ops has 0 commands, want 1 to 1000"},
		{do(slices.Repeat([]redisfence.Op{ok}, 1001)...), "ops has 1001 commands, want 1 to 1000"},
		{do(ok, redisfence.Command("", "a")), "op 1: Name is empty, want a command"},
		{do(ok, redisfence.Command("GET", "")), "Key of op 1 is empty, want a key"},
		{do(redisfence.Command("DEL", "fence:{orders}")), "Key of op 0" + covered},
		{do(redisfence.Command("SET", "a", slices.Repeat([]any{1}, 1001)...)), `op 0, "SET": Args has 1001, want 0 to 1000`},
		{do(redisfence.Command("SET", "a", nil)), `op 0, "SET": argument 0 is a <nil>` + kinds},
		{do(ok, redisfence.Command("SET", "a", "b", []string{"c"})), `op 1, "SET": argument 1 is a []string` + kinds},
		{do(redisfence.Command("SET", "a", unwilling{})), `op 0, "SET": argument 0: it does not want to`},
		{do(redisfence.Command("SET", "a", (*time.Time)(nil))), `op 0, "SET": argument 0 is a nil *time.Time, want a value`},
		{run(nil, nil), "script is nil or zero, want one created by NewScript"},
		{run(&redisfence.Script{}, nil), "script is nil or zero, want one created by NewScript"},
		{run(script, []string{"a", ""}), "key 1 is empty, want a key"},
		{run(script, []string{"fence:{orders}"}), "key 0" + covered},
		{run(script, slices.Repeat([]string{"a"}, 1001)), "keys has 1001, want 0 to 1000"},
		{run(script, nil, slices.Repeat([]any{1}, 1001)...), "args has 1001, want 0 to 1000"},
		{run(script, nil, nil, 1), "run: argument 0 is a <nil>" + kinds},
	} {
		require.EqualError(t, tt.call(), "redisfence: "+tt.want)
	}
}

// As in MULTI, a failed command undoes nothing. Unlike in MULTI, the commands after it do not run.
func TestDo_commandFails(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	for _, tt := range []struct {
		op   redisfence.Op
		want string
	}{
		{redisfence.Command("HSET", "a", "x", 1), `redisfence: do "orders": op 1, "HSET" "a": WRONGTYPE`},
		{redisfence.Command("NOSUCH", "a"), `redisfence: do "orders": op 1, "NOSUCH" "a": ERR Unknown Redis command`},
		{redisfence.Command("INCR", "a", "b"), `redisfence: do "orders": op 1, "INCR" "a": ERR Wrong number of args`},
		{
			redisfence.Command("SUBSCRIBE", "a"),
			`redisfence: do "orders": op 1, "SUBSCRIBE" "a": ERR This Redis command is not allowed`,
		},
	} {
		require.NoError(t, c.FlushAll(t.Context()).Err())
		replies, err := f.Do(as(t, 54), "orders", redisfence.Command("SET", "a", 1), tt.op, redisfence.Command("SET", "b", 1))
		require.ErrorContains(t, err, tt.want)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
		failed, ok := errors.AsType[*redisfence.OpError](err)
		require.True(t, ok)
		require.Equal(t, 1, failed.Index)
		require.Equal(t, tt.op, failed.Op)
		require.Nil(t, replies)
		require.Equal(t, "1", get(t, c, "a"), "before the failure")
		require.Empty(t, get(t, c, "b"), "after it")
		require.Equal(t, "54 0", get(t, c, f.MarkKey("orders")), "the mark is raised")
	}
}

// A server without memory refuses the mark like any other write, so there is no write without its mark.
func TestDo_serverIsFull(t *testing.T) {
	c := newServer(t).client(t)
	f := newFence(t, c)
	require.NoError(t, f.Claim(as(t, 41), "orders"))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for _, token := range []fence.Token{41, 54} {
		err := f.Set(as(t, token), "orders", "orders", 1)
		require.ErrorContains(t, err, "OOM command not allowed")
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
		_, began := errors.AsType[*redisfence.OpError](err)
		require.False(t, began)
		require.Empty(t, get(t, c, "orders"))
		require.Equal(t, "41 0", get(t, c, f.MarkKey("orders")))
	}
}

func TestRun_keysArgumentsAndResult(t *testing.T) {
	f := newFence(t, newClient(t))
	for _, tt := range []struct {
		body string
		want any
	}{
		{"return {KEYS[1], KEYS[2], #KEYS, ARGV[1], ARGV[2], #ARGV}", []any{"k", "l", int64(2), "x", "7", int64(2)}},
		{"return 'text'", "text"},
		{"return 3.9", int64(3)},
		{"return nil", nil},
		{"return false", nil},
		{"", nil},
		{"return {}", []any{}},
		{"return redis.status_reply('FINE')", "FINE"},
		{"return 1 -- a comment at the end", int64(1)},
	} {
		got, err := f.Run(as(t, 54), "orders", redisfence.NewScript(tt.body), []string{"k", "l"}, "x", 7)
		require.NoError(t, err, tt.body)
		require.Equal(t, tt.want, got, tt.body)
	}
}

func TestRun_bodyFails(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	for _, tt := range []struct {
		body, want, mark string
	}{
		{
			"redis.call('SET', KEYS[1], 1) return redis.error_reply('MINE it is')",
			`redisfence: run "orders": MINE it is`, "54 0",
		},
		{"redis.call('SET', KEYS[1], 1)\nerror('of mine')", "user_script:2: of mine", "54 0"},
		{"redis.call('SET', KEYS[1], 1) error({})", "has raised a table", "54 0"},
		{"redis.call('SET', KEYS[1], 1) error(42)", ": 42", "54 0"},
		{"redis.call('SET', KEYS[1], 1) error()", ": nil", "54 0"},
		{"redis.call('SET', KEYS[1], 1) redis.call('HGET', KEYS[1], 'x')", "WRONGTYPE", "54 0"},
		{"redis.call('SET', KEYS[1], 1) return admit", "nonexistent global variable", "54 0"}, // a name of the guard's
		{"return return", "Error compiling script", ""},
	} {
		require.NoError(t, c.FlushAll(t.Context()).Err())
		_, err := f.Run(as(t, 54), "orders", redisfence.NewScript(tt.body), []string{"a"})
		require.ErrorContains(t, err, tt.want)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
		require.Equal(t, tt.mark, get(t, c, f.MarkKey("orders")))
		require.Equal(t, tt.mark != "", get(t, c, "a") == "1")
	}
	for name, c := range map[string]redis.UniversalClient{"one server": c, "a cluster": newCluster(t)} {
		f := newFence(t, c)
		for _, text := range []string{"NOSCRIPT such a plan", "READONLY mine", "TRYAGAIN later"} {
			for _, end := range []string{"return", "error"} {
				key := fmt.Sprintf("{%s}%s", text, end)
				again := redisfence.NewScript("redis.call('INCR', KEYS[1]) " + end + "(redis.error_reply('" + text + "'))")
				for n := range 2 { // the second time the server knows the script
					_, err := f.Run(as(t, 54), text, again, []string{key})
					require.Equal(t, strconv.Itoa(n+1), get(t, c, key), "the body ran once: %s", name)
					require.EqualError(t, err, fmt.Sprintf("redisfence: run %q: %s", text, text))
					_, ok := errors.AsType[redis.Error](err)
					require.True(t, ok)
				}
			}
		}
	}
}

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
