package fencetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// A request that waits for its turn, or a reader that waits for an older writer, ends with its context, when its client
// is gone.
func (w Wire) waitEnds(t *testing.T, s Server) {
	t.Helper()
	s.CheckRead = s.Guard.CheckReadContext
	s.Handle = func(context.Context) error { t.Error("the handler has run"); return nil }
	for _, s.ReadOnly = range []bool{false, true} {
		c := w.Start(t, s)
		require.NoError(t, s.Guard.Do("orders", 41, func() error {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errors.New("the client has gone"))
			got, err := serve(Verb{Reads: s.ReadOnly}.Context(ctx, 54), c)
			require.Equal(t, Ended, got, "%v", err)
			return nil
		}))
	}
	require.Equal(t, map[string]fence.Token{"orders": 41}, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
}

// The handler of token 41 is paused between the check and its write while 54 is sent. With an early check the stale
// write comes last, unless the store refuses it.
func (w Wire) overtaken(t *testing.T, s Server) {
	t.Helper()
	for _, stored := range []bool{false, true} {
		s := s
		s.Guard = new(fence.Guard)
		var (
			mu      sync.Mutex
			store   fence.Guard
			writes  []fence.Token
			checked = make(chan struct{})
			resume  = make(chan struct{})
		)
		s.Handle = func(ctx context.Context) error {
			token, _ := fence.FromContext(ctx)
			if token == 41 {
				close(checked)
				<-resume
			}
			mu.Lock()
			defer mu.Unlock()
			if stored {
				if err := store.Check("orders", token); err != nil {
					return err
				}
			}
			writes = append(writes, token)
			return nil
		}
		c := w.Start(t, s)
		var running sync.WaitGroup
		running.Go(func() { _, _ = c.Send(fence.NewContext(t.Context(), 41), "orders", Set{}) })
		<-checked
		newer := make(chan struct{})
		running.Go(func() {
			defer close(newer)
			_, _ = c.Send(fence.NewContext(t.Context(), 54), "orders", Set{})
		})
		if s.Atomic {
			// No event shows that the newer request waits, so give it time to come too early.
			select {
			case <-newer:
			case <-time.After(50 * time.Millisecond):
			}
		} else {
			<-newer
		}
		close(resume)
		running.Wait()
		want := []fence.Token{54, 41}
		switch {
		case s.Atomic:
			want = []fence.Token{41, 54}
		case stored:
			want = []fence.Token{54}
		}
		require.Equal(t, want, writes)
	}
}

// A handler that panics leaves the mark raised and the resource free. The context of an atomic handler ends with it.
func (w Wire) panics(t *testing.T, s Server) {
	t.Helper()
	left := make(chan context.Context, 3)
	bug := errors.New("bug")
	s.Handle = func(ctx context.Context) error {
		left <- ctx
		if token, _ := fence.FromContext(ctx); token == 54 {
			panic(bug)
		}
		return ctx.Err()
	}
	c := w.Start(t, s)
	require.PanicsWithError(t, "bug", func() { _, _ = serve(fence.NewContext(t.Context(), 54), c) })
	got, err := serve(fence.NewContext(t.Context(), 53), c)
	require.Equal(t, Stale, got, "%v", err)
	got, err = serve(fence.NewContext(t.Context(), 55), c)
	require.Equal(t, Served, got, "%v", err)
	for close(left); s.Atomic && len(left) > 0; {
		require.ErrorIs(t, (<-left).Err(), context.Canceled, "goroutines that the handler left behind must stop")
	}
}

// A server's own check, for example a store's, gets the token and its lock. If it fails, the request is refused, and the
// client does not learn why.
func (w Wire) failedCheck(t *testing.T, s Server) {
	t.Helper()
	if s.Atomic {
		return
	}
	s.Handle = func(context.Context) error { t.Error("the handler has run"); return nil }
	var got []any
	s.Check = func(ctx context.Context, resource string, token fence.Token) error {
		carried, _ := fence.FromContext(ctx)
		lock, _ := fence.LockFromContext(ctx)
		got = []any{carried, resource, token, lock}
		return errors.New("dial 10.0.0.7: refused")
	}
	s.CheckRead = func(ctx context.Context, resource string, token fence.ReadToken) error {
		carried, _ := fence.ReadFromContext(ctx)
		lock, _ := fence.LockFromContext(ctx)
		got = []any{fence.Token(carried), resource, fence.Token(token), lock}
		return errors.New("dial 10.0.0.7: refused")
	}
	for _, s.ReadOnly = range []bool{false, true} {
		err := send(Verb{Reads: s.ReadOnly}.Context(t.Context(), 54, "accounts"), t, w.Start(t, s), Unchecked)
		require.NotContains(t, fmt.Sprint(err), "10.0.0.7")
		require.Equal(t, []any{fence.Token(54), "orders", fence.Token(54), "accounts"}, got)
	}
}

// While the handler of a reader runs, an older writer is refused. Other readers are served, and so is a newer writer:
// then the reader has lost its lock, and learns this from its check after the read.
func (w Wire) besideAReader(t *testing.T, s Server) {
	t.Helper()
	reading, resumed, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	resume := sync.OnceFunc(func() { close(resumed) })
	defer resume() // otherwise the server would wait for its handler
	s.CheckRead = s.Guard.CheckReadContext
	writers := w.Start(t, s)
	s.ReadOnly = true
	s.Handle = func(ctx context.Context) error {
		token, _ := fence.ReadFromContext(ctx)
		if token != 54 {
			return nil
		}
		close(reading)
		<-resumed
		return s.Guard.CheckRead("orders", token)
	}
	readers := w.Start(t, s)
	var late error
	var running sync.WaitGroup
	running.Go(func() {
		defer close(answered)
		_, late = readers.Send(fence.NewReadContext(t.Context(), 54), "orders", Set{})
	})
	select {
	case <-reading:
	case <-answered:
		require.NoError(t, late, "the handler has not run")
	}
	err := send(fence.NewContext(t.Context(), 41), t, writers, Stale)
	RequireRefusal(t, &fence.StaleError{Token: 41, Highest: 54, ByReader: true}, err, "orders", "")
	require.NoError(t, send(fence.NewReadContext(t.Context(), 55), t, readers, Served))
	require.NoError(t, send(fence.NewContext(t.Context(), 60), t, writers, Served))
	resume()
	running.Wait()
	RequireRefusal(t, &fence.StaleError{Token: 54, Highest: 60, Read: true}, late, "orders", "")
}
