package redisfence_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/fence/redisfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// verbs returns all verbs.
func verbs(f *redisfence.Marks) map[string]fencetest.Verb {
	script := redisfence.NewScript("return redis.call('SET', KEYS[1], ARGV[1])")
	all := fencetest.VerbsOf(f.Claim, f.Check, f.Move, f.ClaimRead, f.CheckRead)
	for name, write := range map[string]func(ctx context.Context, r string) error{
		"Set": func(ctx context.Context, r string) error { return f.Set(ctx, r, "data "+r, "new") },
		"Do": func(ctx context.Context, r string) error {
			_, err := f.Do(ctx, r, redisfence.Command("SET", "data "+r, "new"))
			return err
		},
		"Run": func(ctx context.Context, r string) error {
			_, err := f.Run(ctx, r, script, []string{"data " + r}, "new")
			return err
		},
	} {
		all[name] = fencetest.Verb{Call: write, Writes: true}
	}
	return all
}

// call calls a verb with a token of the lock accounts.
func call(t *testing.T, v fencetest.Verb, token fence.Token, resource string) error {
	t.Helper()
	return v.Call(v.Context(t.Context(), token, "accounts"), resource)
}

// commands returns how often the server has run EVALSHA, GET and SET, in scripts too.
func commands(t *testing.T, c *redis.Client) (counts [3]int) {
	t.Helper()
	stats := c.Info(t.Context(), "commandstats").Val()
	for i, name := range []string{"evalsha", "get", "set"} {
		if found := regexp.MustCompile("cmdstat_" + name + ":calls=([0-9]+)").FindStringSubmatch(stats); found != nil {
			n, err := strconv.Atoi(found[1])
			require.NoError(t, err)
			counts[i] = n
		}
	}
	return counts
}

// A script runs one GET and, except for Check, one SET of the mark. A refused call writes nothing.
func TestMarks_rules(t *testing.T) {
	c := newClient(t)
	told := make(fencetest.Told, 9)
	strict, err := redisfence.New(c, redisfence.Options{Hooks: told.Hooks()})
	require.NoError(t, err)
	lax, err := redisfence.New(c, redisfence.Options{AllowUnnamed: true, Hooks: told.Hooks()})
	require.NoError(t, err)
	for name, v := range verbs(strict) {
		require.NoError(t, call(t, v, 1, "warm "+name), "the server knows the script")
	}
	rules := fencetest.Rules{Verbs: verbs(strict), Lax: verbs(lax), Told: told, Marks: marksOn(c, strict)}
	rules.Watch = func(t *testing.T, resource string) func(fencetest.Step) {
		t.Helper()
		require.NoError(t, c.ConfigResetStat(t.Context()).Err())
		return func(s fencetest.Step) {
			want := [3]int{1, 2, 0} // one GET is the test's own
			writes := s.Err == nil && s.Verb.Writes
			if writes {
				want[2]++
			}
			if s.Err == nil && s.Name != "Check" {
				want[2]++
			}
			require.Equal(t, want, commands(t, c), "EVALSHA, GET, SET: %+v", s)
			require.Equal(t, writes, get(t, c, "data "+resource) == "new")
		}
	}
	rules.Decide(t)
	rules.Watch = nil
	rules.Names(t, 1024)
}

func TestMarks_refusesBadInputBeforeItSends(t *testing.T) {
	f, err := redisfence.New(silent(t), redisfence.Options{})
	require.NoError(t, err)
	const braces = "want UTF-8 without NUL and braces"
	fencetest.Refuse(t, verbs(f), map[string]string{
		"":                        "redisfence: resource is empty, want 1 to 1024 bytes",
		strings.Repeat("r", 1025): "redisfence: resource has 1025 bytes, want 1 to 1024",
		"a}b":                     `redisfence: resource is "a}b", ` + braces,
		"{a":                      `redisfence: resource is "{a", ` + braces,
		"a\x00":                   `redisfence: resource is "a\x00", ` + braces,
		"a\xff":                   `redisfence: resource is "a\xff", ` + braces,
	})
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	for name, v := range verbs(f) {
		err := v.Call(v.Context(ended, 54, "accounts"), "orders")
		require.ErrorContains(t, err, `"orders": nothing was sent: context canceled: context deadline exceeded`, name)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
	}
}

// Another holder acts before and after each request of each verb: EVALSHA, and EVAL if the server does not know the
// script yet.
func TestMarks_overlap(t *testing.T) {
	for _, known := range []bool{true, false} {
		c := newClient(t)
		paused, others := shared.client(t), newFence(t, c)
		var moment func()
		paused.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			switch {
			case !strings.HasPrefix(cmd.Name(), "eval"): // the connection's own
				return next(ctx, cmd)
			case cmd.Name() == "evalsha" && !known:
				require.NoError(t, c.ScriptFlush(t.Context()).Err())
			}
			moment()
			defer moment()
			return next(ctx, cmd)
		}))
		rules := fencetest.Rules{Verbs: verbs(newFence(t, paused)), Marks: marksOn(c, others)}
		rules.Overlap(t, verbs(others), func(m func()) { moment = m }, func(resource string) string {
			return get(t, c, "data "+resource)
		})
	}
}

// marksOn reads the marks of a resource.
func marksOn(c *redis.Client, f *redisfence.Marks) func(t *testing.T, resource string) fencetest.Marks {
	return func(t *testing.T, resource string) fencetest.Marks {
		t.Helper()
		value := get(t, c, f.MarkKey(resource))
		m, ok := admission.ParseMarks(value)
		require.True(t, ok || value == "", "%q", value)
		return fencetest.Marks(m)
	}
}

// A malformed mark accepts no token, however new. FuzzMarks_mark has more spellings.
func TestMarks_malformedMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	key := f.MarkKey("orders")
	for name, v := range verbs(f) {
		require.NoError(t, c.Set(t.Context(), key, "054 0", 0).Err())
		err := call(t, v, math.MaxInt64, "orders")
		require.ErrorIs(t, err, redisfence.ErrMalformedMark, name)
		require.EqualError(t, err, `redisfence: malformed mark at "fence:{orders}": "054 0", `+
			"want the token of a writer and that of a reader, 0 if it is not higher, and then perhaps the name of a lock")
		require.Equal(t, "054 0", get(t, c, key))

		require.NoError(t, c.Del(t.Context(), key).Err())
		require.NoError(t, c.RPush(t.Context(), key, "54").Err())
		err = call(t, v, math.MaxInt64, "orders")
		require.ErrorIs(t, err, redisfence.ErrMalformedMark, name)
		require.ErrorContains(t, err, "WRONGTYPE", name)
		require.Empty(t, get(t, c, "data orders"), name)
	}
}

// edges are tokens next to those where a comparison is easily wrong: each power of ten, where lengths differ, 2^53, where
// doubles begin to round, and the largest token; and pairs that differ in one digit.
func edges() (pairs [][2]int64) {
	at := []int64{1 << 53, 1 << 62, 1<<48 + 1, math.MaxInt64 - 1}
	for p := int64(1); p < math.MaxInt64/10; p *= 10 {
		at = append(at, 10*p)
		const ones = 1_111_111_111_111_111_111
		pairs = append(pairs, [2]int64{ones, ones - p}, [2]int64{ones - p, ones})
	}
	for _, n := range at {
		for _, mark := range []int64{n - 1, n, n + 1} {
			for _, token := range []int64{n - 1, n, n + 1} {
				pairs = append(pairs, [2]int64{mark, token})
			}
		}
	}
	return pairs
}

// The script compares marks and locks by the rules of package fence, exactly for every token, and finds every other
// value malformed.
func FuzzMarks_mark(f *testing.F) {
	c := newClient(f)
	stored := newFence(f, c)
	for _, mark := range []string{
		"", "0", "1", "54", "54 ", "054 0", "54 00", "54 060", "54 0\x00", "-1 0", "+1 0", " 1 0", "1 0 ", "1 0\n", "1.0 0", "1e3 0", "١ 0",
		"9007199254740993 0", "9223372036854775807 0", "9223372036854775808 0", "9223372036854775809 0", "10000000000000000000 0",
		"281474976710656 0",     // era 1, revision 0
		"9223090561878065152 0", // era 32767, revision 0
		"41 54", "0 54", "54 54", "54 41", "0 0", "41  54", "41 54 ", "0 281474976710656", "1 9223372036854775807",
		"54 0 l", "54 0 other", "0 60 l", "54 60 other", "54 0 60", "54 0  l", "54 0 l ", "54 0 l 60", "54 0 a\nb", "0 0 l", "54 41 l",
		"54  l", "54 l", "54 0\nl", "41\t54", "54 0 \xff\x00", "54 0 " + strings.Repeat("l", 2305),
	} {
		for _, lock := range []string{"", "l", " l", "60"} {
			f.Add(mark, int64(54), lock)
		}
		f.Add(mark, int64(math.MaxInt64), "l")
		f.Add(mark, int64(1<<53+1), "")
	}
	for _, pair := range edges() {
		f.Add(fmt.Sprintf("%d 0", pair[0]), pair[1], "")
		f.Add(fmt.Sprintf("0 %d", pair[0]), pair[1], "")
	}

	f.Fuzz(func(t *testing.T, mark string, n int64, lock string) {
		token, key := fence.Token(n), stored.MarkKey("orders")
		m, ok := admission.ParseMarks(mark)
		for _, name := range []string{"Check", "Claim", "ClaimRead"} {
			v, after := verbs(stored)[name], mark
			ctx := v.Holder(t.Context(), token, lock)
			require.NoError(t, c.Set(t.Context(), key, mark, 0).Err())
			err := v.Call(ctx, "orders")
			switch {
			case !token.Valid() || lock != "" && fence.CheckLock(lock) != nil:
				require.ErrorIs(t, err, fence.ErrInvalidToken)
			case !ok:
				require.ErrorIs(t, err, redisfence.ErrMalformedMark)
				require.Less(t, len(err.Error()), 250)
				require.NotContains(t, err.Error(), "\n")
			default:
				next, want := fencetest.Marks(m).After(v, token, lock, false)
				fencetest.RequireRefusal(t, want, err, "orders", name)
				after = admission.Marks(next.Normal()).String()
			}
			require.Equal(t, after, get(t, c, key), name)
		}
	})
}

// Holders of one lock overlap in all verbs. Scripts arrive late, also after their calls have been cancelled at random.
func TestMarks_random(t *testing.T) {
	c, late := newClient(t), shared.client(t)
	var under sync.WaitGroup
	t.Cleanup(under.Wait)
	late.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if !strings.HasPrefix(cmd.Name(), "eval") { // the connection's own
			return next(ctx, cmd)
		}
		sent, done := redis.NewCmd(ctx, cmd.Args()...), make(chan error, 1)
		under.Go(func() {
			if rand.IntN(4) == 0 {
				time.Sleep(rand.N(5 * time.Millisecond)) // for varied schedules; nothing relies on its length
			}
			done <- next(context.WithoutCancel(ctx), sent)
		})
		select {
		case err := <-done:
			cmd.(interface{ SetVal(any) }).SetVal(sent.Val())
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	f, direct := newFence(t, late), newFence(t, c)
	s := fencetest.Store{
		Claims: []func(context.Context, string) error{f.Claim},
		Again:  func(error) bool { return false },
		Entries: func(ctx context.Context, resource string) ([]fencetest.Entry, error) {
			replies, err := direct.Do(ctx, resource, redisfence.Command("KEYS", "{"+resource+"}:*"))
			if err != nil {
				return nil, err
			}
			return entries(t, replies[0].([]any)), nil
		},
	}
	body := redisfence.NewScript("local seen = redis.call('KEYS', KEYS[1]) redis.call('SET', KEYS[2], '') return seen")
	for _, name := range []string{"Do", "Run", "Set"} {
		s.Forms = append(s.Forms, fencetest.Form{
			Name: name, Alone: "the server",
			Write: func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
				all, key := "{"+resource+"}:*", fmt.Sprintf("{%s}:%v", resource, e)
				var keys any
				var err error
				switch name {
				case "Set":
					return f.Set(ctx, resource, key, "")
				case "Run":
					keys, err = f.Run(ctx, resource, body, []string{all, key})
				case "Do":
					var replies []any
					replies, err = f.Do(ctx, resource, redisfence.Command("KEYS", all), redisfence.Command("SET", key, ""))
					if err == nil {
						keys = replies[0]
					}
				}
				if err == nil {
					saw(entries(t, keys.([]any)))
				}
				return err
			},
		})
	}
	fencetest.Random(t, s)
}

// entries parses keys of the form "{resource}:entry".
func entries(t *testing.T, keys []any) []fencetest.Entry {
	t.Helper()
	var text strings.Builder
	for _, key := range keys {
		_, entry, _ := strings.Cut(key.(string), ":")
		text.WriteString(" " + entry)
	}
	all, err := fencetest.Entries(text.String())
	require.NoError(t, err)
	return all
}

func TestMarks_grants(t *testing.T) {
	fencetest.Grants(t, verbs(newFence(t, newClient(t))), "Set", "Do", "Run") // Check raises no mark
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
