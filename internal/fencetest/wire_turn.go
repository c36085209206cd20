package fencetest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

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
			require.ErrorIs(t, serve(Verb{Reads: s.ReadOnly}.Context(ctx, 54), c), ErrUnchecked)
			return nil
		}))
	}
	require.Equal(t, map[string]fence.Token{"orders": 41}, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
}

// While the handler of an atomic server runs, no newer token is accepted. Any other server accepts it: the store decides.
func (w Wire) overtaken(t *testing.T, s Server) {
	t.Helper()
	var claimed chan error
	s.Handle = func(context.Context) error {
		go func() { claimed <- s.Guard.Claim("orders", 54) }()
		synctest.Wait()
		require.Equal(t, s.Atomic, len(claimed) == 0)
		return nil
	}
	c := w.Start(t, s)
	synctest.Test(t, func(t *testing.T) {
		claimed = make(chan error, 1)
		require.NoError(t, serve(fence.NewContext(t.Context(), 41), c))
		require.NoError(t, <-claimed)
	})
}

// The context of work that an atomic handler leaves running ends before a newer token is accepted. That of the hooks goes
// on: a hook may write to an audit table.
func (w Wire) endsTheWork(t *testing.T, s Server) {
	t.Helper()
	if !s.Atomic {
		return
	}
	var ended chan error
	s.Guard.Hooks = &fence.Hooks{Accepted: func(ctx context.Context, a fence.Access) {
		if a.Token == 54 { // the handler's turn is over, and the server still waits for the guard
			require.ErrorIs(t, <-ended, context.Canceled)
			require.NoError(t, ctx.Err())
		}
	}}
	s.Handle = func(work context.Context) error {
		go func() {
			_ = s.Guard.Do("orders", 60, func() error { ended <- work.Err(); return nil })
		}()
		return nil
	}
	c := w.Start(t, s)
	synctest.Test(t, func(t *testing.T) {
		ended = make(chan error)
		require.NoError(t, serve(fence.NewContext(t.Context(), 54), c))
	})
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
	require.PanicsWithError(t, "bug", func() { _ = serve(fence.NewContext(t.Context(), 54), c) })
	require.ErrorIs(t, serve(fence.NewContext(t.Context(), 53), c), fence.ErrStale)
	require.NoError(t, serve(fence.NewContext(t.Context(), 55), c))
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
		got = []any{tenureOf(ctx), resource, token}
		return errors.New("dial 10.0.0.7: refused")
	}
	s.CheckRead = func(ctx context.Context, resource string, token fence.ReadToken) error {
		return s.Check(ctx, resource, fence.Token(token))
	}
	for _, s.ReadOnly = range []bool{false, true} {
		ctx := Verb{Reads: s.ReadOnly}.Context(t.Context(), 54, "accounts")
		err := send(ctx, w.Start(t, s))
		require.ErrorIs(t, err, ErrUnchecked)
		require.NotContains(t, err.Error(), "10.0.0.7")
		require.Equal(t, []any{tenureOf(ctx), "orders", fence.Token(54)}, got)
	}
}

// While the handler of a reader runs, an older writer is refused. Other readers are served, and so is a newer writer:
// then the reader has lost its lock, and learns this from its check after the read.
func (w Wire) besideAReader(t *testing.T, s Server) {
	t.Helper()
	s.CheckRead = s.Guard.CheckReadContext
	writers := w.Start(t, s)
	var readers Client
	s.ReadOnly = true
	s.Handle = func(ctx context.Context) error {
		token, _ := fence.ReadFromContext(ctx)
		if token != 54 {
			return nil
		}
		err := serve(fence.NewContext(t.Context(), 41), writers)
		RequireRefusal(t, &fence.StaleError{Token: 41, Highest: 54, ByReader: true}, err, "orders", "")
		require.NoError(t, serve(fence.NewReadContext(t.Context(), 55), readers))
		require.NoError(t, serve(fence.NewContext(t.Context(), 60), writers))
		return s.Guard.CheckRead("orders", token)
	}
	readers = w.Start(t, s)
	late := serve(fence.NewReadContext(t.Context(), 54), readers)
	RequireRefusal(t, &fence.StaleError{Token: 54, Highest: 60, Read: true}, late, "orders", "")
}
