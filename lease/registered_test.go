package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A finished call leaves nothing registered on the caller's context, which may live as long as the process, nor on the
// session's, and no guard of a key.
func TestSession_callsLeaveNothingRegistered(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, ctx context.Context, e, other *env){
		"Lock that waits": func(t *testing.T, ctx context.Context, e, other *env) {
			t.Helper()
			held, err := other.s.TryLock(ctx, "a")
			require.NoError(t, err)
			next, last := e.wait(ctx, "a"), e.wait(ctx, "a")
			time.Sleep(time.Second)
			require.NoError(t, held.Unlock(ctx))
			require.NoError(t, receive(t, next).lock.Unlock(ctx))
			require.NoError(t, receive(t, last).lock.Unlock(ctx))
		},
		"Lock that is given up": func(t *testing.T, ctx context.Context, e, other *env) {
			t.Helper()
			held, err := other.s.TryLock(ctx, "a")
			require.NoError(t, err)
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, second(e.s.Lock(short, "a")), context.DeadlineExceeded)
			short, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, second(e.s.LockAll(short, "a", "b")), context.DeadlineExceeded)
			require.NoError(t, held.Unlock(ctx))
			time.Sleep(time.Second) // until its key is deleted
		},
		"Do": func(t *testing.T, ctx context.Context, e, _ *env) {
			t.Helper()
			require.NoError(t, e.s.Do(ctx, "a", nothing))
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			other := e.join(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			registered := func() int {
				e.at(e.now() + time.Second)
				return e.s.Registered(ctx)
			}
			call(t, ctx, e, other)
			before := registered()
			for range 10 {
				call(t, ctx, e, other)
			}
			require.Equal(t, before, registered())
			require.Empty(t, e.c.Calls(fakeetcd.TimeToLive), "nobody asks why a key is gone that the session has deleted")
		})
	}
}
