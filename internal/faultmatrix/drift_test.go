package faultmatrix_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// cutOff is a holder that is cut off at some moment, and the next holder.
type cutOff struct {
	srv         *fakeetcd.Server
	old, next   *lease.Lock
	ended, gone time.Time // when the holder's context ended, and its key
	granted     time.Time // when the next holder got its handle
}

// playDrift runs a server whose clock has that rate, and cuts off a holder after a time.
func playDrift(t *testing.T, rate float64, cut time.Duration, opts lease.Options) cutOff {
	t.Helper()
	c := cutOff{srv: fakeetcd.New()}
	t.Cleanup(c.srv.Close)
	c.srv.SetRate(rate)
	holder := c.srv.NewClient(t.Context())
	c.old = lockOf(t, holder, opts)
	ended := make(chan time.Time, 1)
	context.AfterFunc(c.old.Context(), func() { ended <- time.Now() })

	other := session(t, c.srv.NewClient(t.Context()), opts)
	time.AfterFunc(cut, holder.Cut)
	next, err := other.Lock(t.Context(), "a")
	require.NoError(t, err)
	c.next, c.granted, c.ended = next, time.Now(), <-ended
	for _, change := range c.srv.History(c.old.Key()) {
		if !change.Put {
			c.gone = change.At
		}
	}
	return c
}

func session(t *testing.T, c *fakeetcd.Client, opts lease.Options) *lease.Session {
	t.Helper()
	s, err := lease.NewSession(t.Context(), c.Client, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		_ = s.Close(ctx) // fails for a session that is cut off; its lease expires
	})
	return s
}

func lockOf(t *testing.T, c *fakeetcd.Client, opts lease.Options) *lease.Lock {
	t.Helper()
	l, err := session(t, c, opts).TryLock(t.Context(), "a")
	require.NoError(t, err)
	return l
}

// A margin of a tenth of the TTL covers a server whose clock is up to 10 % faster than the holder's, wherever in the
// renewal cycle the holder is cut off. The default margin is a tenth up to a TTL of 10 s.
func TestDrift_withinTheMargin(t *testing.T) {
	const s = time.Second
	for _, opts := range []lease.Options{{TTL: 2 * s}, {TTL: 5 * s}, {TTL: 10 * s}, {TTL: 30 * s, Margin: 3 * s}, {TTL: 300 * s, Margin: 30 * s}} {
		for _, rate := range []float64{0.9, 0.95, 1, 1.05, 1.1} {
			for part := range 12 {
				cut := opts.TTL/20 + time.Duration(part)*opts.TTL/9
				t.Run(fmt.Sprintf("%v/%v/%v", opts.TTL, rate, cut), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := playDrift(t, rate, cut, opts)
						require.Less(t, c.ended, c.gone)
						require.Less(t, c.ended, c.granted)
						require.Greater(t, c.next.Token(), c.old.Token())
					})
				})
			}
		}
	}
}

// At a TTL of 30 s the default margin of 1 s covers a server that is up to 1/29 faster. Beyond that two handles are
// live for a while, and the fence decides, since the new token is larger.
func TestDrift_beyondTheMargin(t *testing.T) {
	for rate, covered := range map[float64]bool{1.03: true, 1.034: true, 1.036: false, 1.1: false} {
		synctest.Test(t, func(t *testing.T) {
			c := playDrift(t, rate, time.Second, lease.Options{})
			expiry := time.Duration(float64(30*time.Second) / rate)
			require.Equal(t, covered, 29*time.Second < expiry)
			if covered {
				require.Less(t, c.ended, c.granted)
			}
			if rate == 1.1 {
				require.Equal(t, 1500*time.Millisecond, c.ended.Sub(c.granted), "the lease was gone at 27.5 s, the handle at 29 s")
			}
			require.Greater(t, c.next.Token(), c.old.Token())
		})
	}
}

// If the clock that runs during suspension disagrees with the other one, the longer elapsed time counts: a handle may
// end sooner, but never later.
func TestDrift_ofTheBootClock(t *testing.T) {
	for name, tc := range map[string]struct {
		boot func(elapsed time.Duration) time.Duration
		want time.Duration // when the handle of a holder that is cut off ends
	}{
		"as fast":      {func(d time.Duration) time.Duration { return d }, 29 * time.Second},
		"10 % slow":    {func(d time.Duration) time.Duration { return d * 9 / 10 }, 29 * time.Second},
		"stands still": {func(time.Duration) time.Duration { return 0 }, 29 * time.Second},
		"steps back":   {func(d time.Duration) time.Duration { return d - d.Truncate(5*time.Second)*1000 }, 29 * time.Second},
		"10 % fast":    {func(d time.Duration) time.Duration { return d * 11 / 10 }, 29 * time.Second * 10 / 11},
		"steps ahead": {func(d time.Duration) time.Duration {
			if d < 12*time.Second {
				return d
			}
			return d + time.Hour
		}, 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				clock.System = clock.Clock{Boot: func() time.Duration { return tc.boot(time.Since(began)) }}
				defer func() { clock.System = clock.Clock{} }()
				srv := fakeetcd.New()
				t.Cleanup(srv.Close)
				c := srv.NewClient(t.Context())
				l := lockOf(t, c, lease.Options{})
				c.Cut()
				<-l.Context().Done()
				took := time.Since(began)
				require.GreaterOrEqual(t, took, tc.want)
				require.LessOrEqual(t, took, tc.want+500*time.Millisecond, "the clocks are compared every 500 ms")
				require.ErrorIs(t, l.Err(), lease.ErrLost)
			})
		})
	}
}

// A step of the wall clock changes nothing, since every time that is compared has its monotonic reading.
func TestWallClock_isNotUsed(t *testing.T) {
	srv := fakeetcd.New() // not in a bubble, whose times have no monotonic reading
	t.Cleanup(srv.Close)
	l := lockOf(t, srv.NewClient(t.Context()), lease.Options{})
	require.Contains(t, l.Deadline().String(), " m=")
	require.Contains(t, clock.System.After(clock.System.Now(), time.Second).String(), " m=")

	// Calls that remove the monotonic reading, or make a time without one.
	wall := regexp.MustCompile(`\.Unix(Milli|Micro|Nano)?\(|time\.(Unix|Date|Parse)|\.(UTC|Local)\(\)|\.In\(time|\.Round\(0\)`)
	for _, dir := range []string{"lease", "election", "internal/clock", "internal/etcd", "internal/queue"} {
		names, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, names)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotRegexp(t, wall, string(text), name)
		}
	}
}
