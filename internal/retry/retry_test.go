package retry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/retry"
)

// env is a client whose server is never asked, and the time at which it was made.
type env struct {
	*clientv3.Client

	began time.Time
}

func start(t *testing.T) *env {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return &env{Client: srv.Client(t.Context()), began: time.Now()}
}

func (e *env) now() time.Duration { return time.Since(e.began) }

func TestBackoff_bounds(t *testing.T) {
	var b retry.Backoff
	for range 3 {
		for _, longest := range []int64{25, 50, 100, 200, 400, 800, 1000, 1000, 1000} {
			d := b.Next()
			require.LessOrEqual(t, d, time.Duration(longest)*time.Millisecond)
			require.GreaterOrEqual(t, d, time.Duration(longest)*time.Millisecond/2)
		}
		b.Reset()
	}
	for range 1000 { // no overflow
		require.Positive(t, b.Next())
	}
}

func TestBackoff_differs(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 100 {
		var b retry.Backoff
		seen[b.Next()] = true
	}
	require.Greater(t, len(seen), 50)
}

func TestBackoff_Sleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var b retry.Backoff
		require.NoError(t, b.Sleep(t.Context()))
		require.Greater(t, time.Since(began), 12*time.Millisecond)
		require.LessOrEqual(t, time.Since(began), 25*time.Millisecond)
		mine := errors.New("mine")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, mine)
		defer cancel()
		began = time.Now()
		require.Equal(t, mine, b.Sleep(ctx))
		require.Equal(t, time.Millisecond, time.Since(began))
	})
}

// What is repeated, and what is known not to have been carried out, of what the client tells.
func TestTransientAndRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		err                error
		transient, refused bool
	}{
		"no leader":            {rpctypes.ErrGRPCNoLeader, true, false},
		"leader changed":       {rpctypes.ErrGRPCLeaderChanged, true, false},
		"not capable":          {rpctypes.ErrGRPCNotCapable, false, true},
		"stopped":              {rpctypes.ErrGRPCStopped, true, false},
		"timeout":              {rpctypes.ErrGRPCTimeout, true, false},
		"timeout, leader":      {rpctypes.ErrGRPCTimeoutDueToLeaderFail, true, false},
		"timeout, connection":  {rpctypes.ErrGRPCTimeoutDueToConnectionLost, true, false},
		"unhealthy":            {rpctypes.ErrGRPCUnhealthy, true, false},
		"too many requests":    {rpctypes.ErrGRPCRequestTooManyRequests, true, true},
		"lease not found":      {rpctypes.ErrGRPCLeaseNotFound, false, true},
		"no space":             {rpctypes.ErrGRPCNoSpace, false, false}, // etcd may apply it all the same
		"message too large":    {status.Error(codes.ResourceExhausted, "trying to send message larger than max (2 vs. 1)"), false, true},
		"answer too large":     {status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2 vs. 1)"), false, false},
		"calm down":            {status.Error(codes.ResourceExhausted, "stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM"), false, false},
		"too large":            {rpctypes.ErrGRPCRequestTooLarge, false, true},
		"too many operations":  {rpctypes.ErrGRPCTooManyOps, false, true},
		"permission":           {rpctypes.ErrGRPCPermissionDenied, false, true},
		"auth token":           {rpctypes.ErrGRPCInvalidAuthToken, false, true},
		"compacted":            {rpctypes.ErrGRPCCompacted, false, true},
		"corrupt":              {rpctypes.ErrGRPCCorrupt, false, false},
		"connection":           {status.Error(codes.Unavailable, "transport is closing"), true, false},
		"aborted":              {status.Error(codes.Aborted, ""), true, false},
		"unknown":              {status.Error(codes.Unknown, ""), false, false},
		"deadline on the wire": {status.Error(codes.DeadlineExceeded, ""), true, false},
		"cancelled":            {status.Error(codes.Canceled, ""), true, false},
		"deadline":             {context.DeadlineExceeded, true, false},
		"context":              {context.Canceled, true, false},
		"some other":           {errors.New("x"), false, false},
	} {
		for how, err := range map[string]error{"told": rpctypes.Error(tc.err), "wrapped": fmt.Errorf("x: %w", rpctypes.Error(tc.err))} {
			require.Equal(t, tc.transient, retry.Transient(err), "%s, %s", name, how)
			require.Equal(t, tc.refused, retry.Refused(err), "%s, %s", name, how)
		}
	}
	require.False(t, retry.Transient(nil))
	require.False(t, retry.Refused(nil))
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		n := 0
		require.NoError(t, retry.Do(t.Context(), e.Client, time.Second, func(context.Context) error {
			n++
			if n < 4 {
				return rpctypes.ErrNoLeader
			}
			return nil
		}))
		require.Equal(t, 4, n)
		require.LessOrEqual(t, e.now(), 175*time.Millisecond)

		n = 0
		err := retry.Do(t.Context(), e.Client, time.Second, func(context.Context) error {
			n++
			return rpctypes.ErrLeaseNotFound
		})
		require.Equal(t, rpctypes.ErrLeaseNotFound, err)
		require.Equal(t, 1, n)
	})
}

// An endpoint that does not answer is left soon, and a network that is slow is waited for.
func TestDo_attemptsGetMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		seconds := []int{1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8}
		n := 0
		require.NoError(t, retry.Do(t.Context(), e.Client, time.Second, func(ctx context.Context) error {
			began := time.Now()
			<-ctx.Done()
			got := time.Since(began)
			most := time.Duration(seconds[n]) * time.Second
			require.LessOrEqual(t, got, most)
			require.GreaterOrEqual(t, got, most/2)
			if n == 0 {
				require.Equal(t, time.Second, got)
			}
			if n++; n == len(seconds) {
				return nil
			}
			return ctx.Err()
		}))
	})
}

// A sick endpoint that is met again and again does not use up the time for the others.
func TestBounds_growByTurns(t *testing.T) {
	for endpoints, turns := range map[int][]int{
		1: {1, 2, 4, 8, 8, 8, 8},
		3: {1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8},
	} {
		for i, got := range retry.Bounds(time.Second, endpoints, len(turns)) {
			most := time.Duration(turns[i]) * time.Second
			require.LessOrEqual(t, got, most)
			require.GreaterOrEqual(t, got, most/2)
			if i == 0 {
				require.Equal(t, time.Second, got)
			}
		}
	}
	require.Positive(t, slices.Min(retry.Bounds(time.Second, 3, 1000)))
}

// The error is the caller's end, and tells of the attempt in words, if there is something to tell: an attempt's own
// time-out is not the caller's.
func TestDo_contextEnds(t *testing.T) {
	mine := errors.New("mine")
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	fail := func(context.Context) error { return rpctypes.ErrNoLeader }
	for name, tc := range map[string]struct {
		do   func(context.Context) error
		want string
	}{
		"during an attempt": {hang, "mine"},
		"during a pause":    {fail, "mine (last attempt: etcdserver: no leader)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 5300*time.Millisecond, mine)
				defer cancel()
				err := retry.Do(ctx, e.Client, 2*time.Second, tc.do)
				require.EqualError(t, err, tc.want)
				require.ErrorIs(t, err, mine)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, rpctypes.ErrNoLeader)
				require.Equal(t, 5300*time.Millisecond, e.now())
			})
		})
	}
}

func TestDo_contextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(mine)
		require.ErrorIs(t, retry.Do(ctx, e.Client, time.Second, func(context.Context) error {
			require.Fail(t, "called")
			return nil
		}), mine)
	})
}

func TestDo_clientIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		_ = e.Close() // reports that its context is cancelled
		err := retry.Do(t.Context(), e.Client, time.Second, func(ctx context.Context) error {
			_, err := e.Get(ctx, "a")
			return err
		})
		require.ErrorContains(t, err, "the etcd client is closed")
		require.Zero(t, e.now())
	})
}

// While ends with either of its contexts, in an attempt and in a pause, with the cause of the one that has ended.
func TestWhile_endsWithItsLife(t *testing.T) {
	mine, lost := errors.New("mine"), errors.New("lost")
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	fail := func(context.Context) error { return rpctypes.ErrNoLeader }
	for name, do := range map[string]func(context.Context) error{"during an attempt": hang, "during a pause": fail} {
		for _, ends := range []error{mine, lost} {
			t.Run(name+", "+ends.Error(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := start(t)
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					life, end := context.WithCancelCause(t.Context())
					defer end(nil)
					time.AfterFunc(5300*time.Millisecond, func() {
						if ends == mine { //nolint:errorlint // which of the two
							cancel(mine)
						} else {
							end(lost)
						}
					})
					err := retry.While(ctx, life, e.Client, 20*time.Second, do)
					require.ErrorIs(t, err, ends)
					require.NotErrorIs(t, err, context.Canceled)
					require.Equal(t, 5300*time.Millisecond, e.now())

					err = retry.While(ctx, life, e.Client, time.Second, func(context.Context) error {
						require.Fail(t, "called")
						return nil
					})
					require.ErrorIs(t, err, ends, "it has ended before")
				})
			})
		}
	}
}

// What was given up before it was sent was not carried out, whatever ended it.
func TestRefused_notSent(t *testing.T) {
	err := fmt.Errorf("%w: %w", retry.ErrNotSent, context.Canceled)
	require.True(t, retry.Refused(err))
	require.True(t, retry.Transient(err))
	require.False(t, retry.Refused(context.Canceled))
}
