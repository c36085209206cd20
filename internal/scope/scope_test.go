package scope_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/scope"
)

type key string

var errHandle, errCaller = errors.New("handle"), errors.New("caller")

// pair returns a handle's context and a caller's, with functions that end them.
func pair(t *testing.T) (handle, caller context.Context, endHandle, endCaller context.CancelCauseFunc) {
	t.Helper()
	handle, endHandle = context.WithCancelCause(t.Context())
	caller, endCaller = context.WithCancelCause(t.Context())
	t.Cleanup(func() {
		endHandle(nil)
		endCaller(nil)
	})
	return handle, caller, endHandle, endCaller
}

func TestWork_endsWithEither(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(handle, caller context.CancelCauseFunc)
		want error
	}{
		"the handle":       {func(h, _ context.CancelCauseFunc) { h(errHandle) }, errHandle},
		"the caller":       {func(_, c context.CancelCauseFunc) { c(errCaller) }, errCaller},
		"the caller, bare": {func(_, c context.CancelCauseFunc) { c(nil) }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handle, caller, endHandle, endCaller := pair(t)
				work, done := scope.Work(handle, caller)
				defer done()
				require.NoError(t, work.Err())

				c.end(endHandle, endCaller)
				synctest.Wait()
				require.ErrorIs(t, work.Err(), context.Canceled)
				require.Equal(t, c.want, context.Cause(work))

				endHandle(errHandle)
				endCaller(errCaller)
				synctest.Wait()
				require.Equal(t, c.want, context.Cause(work), "the first cause stays")
			})
		})
	}
}

func TestWork_endsWithTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, caller, _, _ := pair(t)
		caller, cancel := context.WithTimeout(caller, time.Minute)
		defer cancel()
		work, done := scope.Work(handle, caller)
		defer done()
		want, _ := caller.Deadline()
		got, ok := work.Deadline()
		require.True(t, ok)
		require.Equal(t, want, got)

		began := time.Now()
		<-work.Done()
		require.Equal(t, time.Minute, time.Since(began))
		require.Equal(t, context.DeadlineExceeded, context.Cause(work))
	})
}

func TestWork_hasTheValuesOfBoth(t *testing.T) {
	handle, caller, _, _ := pair(t)
	handle = context.WithValue(handle, key("both"), "handle")
	handle = context.WithValue(handle, key("handle"), "handle")
	caller = context.WithValue(caller, key("both"), "caller")
	caller = context.WithValue(caller, key("caller"), "caller")
	work, done := scope.Work(handle, caller)
	defer done()
	require.Equal(t, "handle", work.Value(key("both")))
	require.Equal(t, "handle", work.Value(key("handle")))
	require.Equal(t, "caller", work.Value(key("caller")))
	require.Nil(t, work.Value(key("neither")))

	below, cancel := context.WithCancel(work)
	defer cancel()
	require.Equal(t, "caller", below.Value(key("caller")), "a derived context has them too")
}

// When the function has returned, neither parent ends, and their later ends have no effect.
func TestWork_done(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, caller, endHandle, endCaller := pair(t)
		work, done := scope.Work(handle, caller)
		done()
		require.Equal(t, context.Canceled, context.Cause(work))
		require.NoError(t, handle.Err())
		require.NoError(t, caller.Err())
		_, bounded := work.Deadline()
		require.False(t, bounded, "neither parent has a deadline")
		endHandle(errHandle)
		endCaller(errCaller)
		synctest.Wait()
		require.Equal(t, context.Canceled, context.Cause(work))
	})
}
