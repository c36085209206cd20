package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

// heard records the calls of hooks, one line each.
type heard struct {
	mu    sync.Mutex
	lines []string
}

type spanKey struct{}

func (h *heard) add(ctx context.Context, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if ctx.Value(spanKey{}) == nil {
		line += " without the context of AcquireStart"
	}
	h.lines = append(h.lines, line)
}

// take returns the lines and forgets them.
func (h *heard) take() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := h.lines
	h.lines = nil
	return lines
}

func what(a lease.Acquisition) string {
	text := a.Kind.String() + " " + strings.Join(a.Names, ",")
	if a.Try {
		text = "try " + text
	}
	return text
}

// hooks returns hooks for acquisitions and holds.
func (h *heard) hooks() *lease.Hooks {
	return &lease.Hooks{
		AcquireStart: func(ctx context.Context, a lease.Acquisition) context.Context {
			ctx = context.WithValue(ctx, spanKey{}, true)
			h.add(ctx, "start %s of %s", what(a), a.Owner)
			return ctx
		},
		Queued: func(ctx context.Context, a lease.Acquisition, ahead string) {
			h.add(ctx, "queued %s, ahead %t", what(a), ahead != "")
		},
		AcquireEnd: func(ctx context.Context, a lease.Acquisition, r lease.Acquired) {
			h.add(ctx, "end %s: held %t, after %v, queued %t, %v", what(a), r.Token.Valid() && r.Key != "", r.Waited, r.Queued, r.Err)
		},
		Released: func(ctx context.Context, hold lease.Hold, err error) {
			h.add(ctx, "released %s after %v: %v", what(hold.Acquisition), hold.Held, err)
		},
		Lost: func(ctx context.Context, hold lease.Hold, err *lease.LostError) {
			h.add(ctx, "lost %s after %v: %v", what(hold.Acquisition), hold.Held, err.Reason)
		},
	}
}

// For each kind of lock the hooks report the start, the wait, the end of the acquisition, and the release.
func TestHooks_eachKind(t *testing.T) {
	for name, kind := range kinds {
		inBubble(t, name, func(t *testing.T) {
			var h heard
			e := start(t, lease.Options{Owner: "me", Hooks: h.hooks()})
			other := e.join(t)
			l := other.lock(t, "a")
			done := later(func() error { return kind.do(t.Context(), e.s, func() { time.Sleep(time.Minute) }) })
			require.Equal(t, []string{"start " + name + " of me", "queued " + name + ", ahead true"}, h.take())
			time.Sleep(2 * time.Second)
			require.NoError(t, l.Unlock(t.Context()))
			require.Equal(t, []string{"end " + name + ": held true, after 2s, queued true, <nil>"}, h.take())
			require.NoError(t, <-done)
			require.Equal(t, []string{"released " + name + " after 1m0s: <nil>"}, h.take())
		})
	}
}

func TestHooks_ofAcquisitionsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		e := start(t, lease.Options{Owner: "me", Hooks: h.hooks()})
		l := e.lock(t, "a")
		require.Equal(t, []string{"start try lock a of me", "end try lock a: held true, after 0s, queued false, <nil>"}, h.take())

		_, err := e.s.TryLock(t.Context(), "a")
		require.Equal(t, []string{"start try lock a of me", fmt.Sprintf("end try lock a: held false, after 0s, queued true, %v", err)}, h.take())
		require.ErrorIs(t, second(e.s.Lock(timeout(t, time.Second), "a", lease.WithOwner("you"))), context.DeadlineExceeded)
		require.Equal(t, []string{
			"start lock a of you", "queued lock a, ahead false",
			"end lock a: held false, after 1s, queued true, context deadline exceeded",
		}, h.take())
		ended, end := context.WithCancelCause(t.Context())
		end(lease.ErrLocked)
		require.ErrorIs(t, second(e.s.Lock(ended, "b")), lease.ErrLocked)
		require.Equal(t, []string{"start lock b of me", fmt.Sprintf("end lock b: held false, after 0s, queued false, %v", lease.ErrLocked)}, h.take())
		require.Error(t, second(e.s.Lock(t.Context(), "")))
		require.Empty(t, h.take(), "an illegal name starts no acquisition")
		require.NoError(t, l.Unlock(t.Context()))
		require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrUnlocked)
		require.Equal(t, []string{"released try lock a after 1s: <nil>"}, h.take())
	})
}

// A hold that was lost is not reported as released too, whoever finds the loss.
func TestHooks_Lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		host := hosttest.Start(t, false)
		e := start(t, lease.Options{Owner: "me", Hooks: h.hooks()})
		a, b := e.lock(t, "a"), e.lock(t, "b")
		h.take()
		time.Sleep(time.Second)
		require.True(t, e.srv.Delete(a.Key()))
		require.Equal(t, []string{"lost try lock a after 1s: the key was deleted by somebody else"}, h.take())
		require.ErrorIs(t, a.Unlock(t.Context()), lease.ErrLost)
		require.Empty(t, h.take())
		require.NoError(t, b.Unlock(t.Context()))
		require.Equal(t, []string{"released try lock b after 1s: <nil>"}, h.take())
		for range 10 { // the call itself finds the loss, or its context's end does
			c := e.lock(t, "c")
			h.take()
			host.Suspend(usable)
			requireLost(t, c.Unlock(t.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, []string{"lost try lock c after 0s: no renewal was acknowledged before the deadline"}, h.take())
			require.Empty(t, e.keys("c"), "its key is deleted anyway")
		}
	})
}

// A hold that has reached its longest time still has its key. The hooks report that it was unlocked, or lost with its
// lease, whichever comes first.
func TestHooks_afterTheLongestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		e := start(t, lease.Options{Owner: "me", Hooks: h.hooks()})
		longest := lease.WithMaxHold(time.Second)
		a, b := e.lock(t, "a", longest), e.lock(t, "b", longest)
		e.lock(t, "c", longest)
		time.Sleep(2 * time.Second)
		h.take()
		require.ErrorIs(t, context.Cause(a.Context()), lease.ErrMaxHold)
		require.NoError(t, a.Unlock(t.Context()))
		require.Equal(t, []string{"released try lock a after 2s: <nil>"}, h.take())
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		require.ElementsMatch(t, []string{
			"lost try lock b after 2s: the lease has expired or was revoked", "lost try lock c after 2s: the lease has expired or was revoked",
		}, h.take())
		require.Error(t, b.Unlock(t.Context()))
		require.NoError(t, e.s.Close(t.Context()))
		require.Empty(t, h.take())
	})
}

// The hooks report each renewal, each change of state, and the number of keys to clean up.
func TestHooks_ofTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		nobody := context.WithValue(t.Context(), spanKey{}, true) // of no acquisition
		e := start(t, lease.Options{Hooks: &lease.Hooks{
			Renewed: func(r lease.Renewal) {
				h.add(nobody, "renewed in %v, attempts %d, left %v", r.RoundTrip, r.Attempts, r.Left)
			},
			StateChanged: func(s lease.Status) { h.add(nobody, "%v", s.State) },
			CleanUp:      func(_ clientv3.LeaseID, keys int) { h.add(nobody, "to clean up: %d", keys) },
		}})
		require.Equal(t, []string{"held"}, h.take())
		e.at(third)
		require.Equal(t, []string{"renewed in 0s, attempts 1, left 19s"}, h.take())

		remove := e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: errDenied})
		e.at(2*third + time.Second)
		require.Equal(t, []string{"jeopardy"}, h.take())
		remove()
		e.at(3 * third)
		lines := h.take()
		require.Len(t, lines, 2)
		slices.Sort(lines) // the calls come from two queues, in any order
		require.Equal(t, "held", lines[0])
		require.Regexp(t, `^renewed in 0s, attempts [2-9], left \d`, lines[1])

		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 2 * time.Second, Late: true})
		require.ErrorIs(t, second(e.s.Lock(timeout(t, time.Second), "a")), context.DeadlineExceeded)
		require.Equal(t, []string{"to clean up: 1"}, h.take())
		e.at(e.now() + lateFor)
		lines = h.take()
		require.Equal(t, "to clean up: 0", lines[len(lines)-1])
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 2 * time.Second, Late: true})
		require.Error(t, second(e.s.Lock(timeout(t, time.Second), "a")))
		require.Equal(t, []string{"to clean up: 1"}, h.take())
		l := e.lock(t, "b")
		require.NoError(t, e.s.Close(t.Context()))
		require.Equal(t, []string{"to clean up: 0", "lost"}, h.take())
		require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrClosed)
		require.Empty(t, h.take(), "once the session is closed, it has no key to clean up")
	})
}

// stuck is a log handler that does not return before release is closed.
type stuck struct {
	slog.Handler

	release chan struct{}
}

// Enabled implements [slog.Handler].
func (h stuck) Enabled(context.Context, slog.Level) bool {
	<-h.release
	return true
}

// WithAttrs implements [slog.Handler].
func (h stuck) WithAttrs([]slog.Attr) slog.Handler {
	<-h.release
	return h
}

// A hook or a log handler that does not return blocks its own caller, and nothing else. Close leaves nothing running but
// that.
func TestHooks_thatBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, slow := make(chan struct{}), make(chan struct{})
		block := func() { <-release }
		e := start(t, lease.Options{Logger: slog.New(stuck{slog.DiscardHandler, release}), Hooks: &lease.Hooks{
			Renewed:      func(lease.Renewal) { block() },
			StateChanged: func(lease.Status) { block() },
			CleanUp:      func(clientv3.LeaseID, int) { block() },
			Lost:         func(context.Context, lease.Hold, *lease.LostError) { block() },
			AcquireEnd: func(_ context.Context, a lease.Acquisition, _ lease.Acquired) {
				if a.Names[0] == "slow" {
					<-slow
				}
			},
		}})
		t.Cleanup(func() { close(release) })
		goOn := sync.OnceFunc(func() { close(slow) })
		t.Cleanup(goOn)
		go func() { _, _ = e.s.Lock(t.Context(), "slow") }()
		l := e.lock(t, "a")
		end := e.ended(l)
		e.at(third - 1)
		e.c.Cut()
		e.at(third + patience)
		require.Equal(t, lease.StateJeopardy, e.s.Status().State)
		e.c.Restore()
		e.at(10 * ttl)
		require.NoError(t, l.Err(), "it is renewed")
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: errDenied})
		lost := receive(t, end)
		require.Greater(t, lost, 10*ttl)
		require.Less(t, lost, 11*ttl)
		e.c.Reset()
		require.NoError(t, e.lock(t, "b").Unlock(t.Context()))
		goOn()
		closing := e.now()
		require.NoError(t, e.s.Close(timeout(t, time.Second)))
		require.LessOrEqual(t, e.now()-closing, time.Second)
		require.Empty(t, e.leaseIDs())
	})
}

// However many calls wait behind a slow one, the last state is reported, and after Close the number of keys to clean up
// is 0.
func TestHooks_reportTheLastState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		nobody := context.WithValue(t.Context(), spanKey{}, true)
		e := start(t, lease.Options{Hooks: &lease.Hooks{
			StateChanged: func(s lease.Status) { h.add(nobody, "%v", s.State) },
			CleanUp: func(_ clientv3.LeaseID, keys int) {
				time.Sleep(time.Hour)
				h.add(nobody, "%d keys", keys)
			},
		}})
		var locks []*lease.Lock
		for i := range 600 {
			locks = append(locks, e.lock(t, fmt.Sprint(i)))
		}
		e.c.Cut()
		for _, l := range locks {
			go func() { _ = l.Unlock(timeout(t, time.Second)) }()
		}
		time.Sleep(ttl)
		_ = e.s.Close(timeout(t, time.Minute)) // its lease has run out
		time.Sleep(24 * time.Hour)
		lines := h.take()
		require.ElementsMatch(t, []string{"lost", "0 keys"}, lines[len(lines)-2:], "%v", lines)
	})
}

// The caller's context bounds the wait, also if AcquireStart returns one that is not derived from it.
func TestHooks_anotherContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{Hooks: &lease.Hooks{
			AcquireStart: func(context.Context, lease.Acquisition) context.Context { return t.Context() },
		}})
		e.lock(t, "a")
		got := receive(t, e.wait(timeout(t, time.Second), "a"))
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.Equal(t, time.Second, got.at)
	})
}

// Joined hooks are all called, in order. Each AcquireStart gets the previous one's context, and the other calls get the
// last one's.
func TestJoinHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		type key string
		named := func(name string) *lease.Hooks {
			add := func(ctx context.Context, what string) {
				h.add(ctx, "%s of %v, %v %s", name, ctx.Value(key("a")), ctx.Value(key("b")), what)
			}
			nobody := context.WithValue(t.Context(), spanKey{}, true) // of no acquisition
			return &lease.Hooks{
				AcquireStart: func(ctx context.Context, _ lease.Acquisition) context.Context {
					ctx = context.WithValue(ctx, spanKey{}, true)
					add(ctx, "start")
					return context.WithValue(ctx, key(name), name)
				},
				Queued:       func(ctx context.Context, _ lease.Acquisition, _ string) { add(ctx, "queued") },
				AcquireEnd:   func(ctx context.Context, _ lease.Acquisition, _ lease.Acquired) { add(ctx, "end") },
				Released:     func(ctx context.Context, _ lease.Hold, _ error) { add(ctx, "released") },
				Lost:         func(ctx context.Context, _ lease.Hold, _ *lease.LostError) { add(ctx, "lost") },
				Renewed:      func(lease.Renewal) { h.add(nobody, "%s renewed", name) },
				StateChanged: func(s lease.Status) { h.add(nobody, "%s %v", name, s.State) },
				CleanUp:      func(_ clientv3.LeaseID, keys int) { h.add(nobody, "%s cleanup %d", name, keys) },
			}
		}
		none := &lease.Hooks{AcquireStart: func(context.Context, lease.Acquisition) context.Context { return nil }}
		e := start(t, lease.Options{Hooks: lease.JoinHooks(nil, named("a"), &lease.Hooks{}, named("b"), none)})
		require.Equal(t, []string{"a held", "b held"}, h.take())
		l, other := e.lock(t, "x"), e.lock(t, "y")
		require.NoError(t, l.Unlock(t.Context()))
		once := []string{"a of <nil>, <nil> start", "b of a, <nil> start", "a of a, b end", "b of a, b end"}
		want := slices.Concat(once, once, []string{"a of a, b released", "b of a, b released"})
		require.Equal(t, want, h.take())
		require.Error(t, second(e.s.Lock(timeout(t, time.Second), "y")))
		require.Equal(t, []string{
			"a of <nil>, <nil> start", "b of a, <nil> start", "a of a, b queued", "b of a, b queued", "a of a, b end", "b of a, b end",
		}, h.take())
		e.at(third)
		require.Equal(t, []string{"a renewed", "b renewed"}, h.take())
		require.True(t, e.srv.Delete(other.Key()))
		require.Equal(t, []string{"a of a, b lost", "b of a, b lost"}, h.take())
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 2 * time.Second, Late: true})
		require.Error(t, second(e.s.Lock(timeout(t, time.Second), "z")))
		require.Equal(t, []string{"a cleanup 1", "b cleanup 1"}, slices.DeleteFunc(h.take(), func(line string) bool {
			return !strings.Contains(line, "cleanup") // another goroutine reports it
		}))
		require.Nil(t, lease.JoinHooks().Lost, "a nil hook costs nothing")

		bad := &lease.Hooks{
			AcquireEnd: func(context.Context, lease.Acquisition, lease.Acquired) { panic("mine") },
			Released:   func(context.Context, lease.Hold, error) { panic("mine") },
		}
		joined, ctx := lease.JoinHooks(bad, named("b")), context.WithValue(t.Context(), spanKey{}, true)
		require.Panics(t, func() { joined.AcquireEnd(ctx, lease.Acquisition{}, lease.Acquired{}) })
		require.Panics(t, func() { joined.Released(ctx, lease.Hold{}, nil) })
		require.Equal(t, []string{"b of <nil>, <nil> end", "b of <nil>, <nil> released"}, h.take(), "a gauge of holds would be wrong")
	})
}
