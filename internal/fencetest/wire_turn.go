package fencetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
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

// While the handler of an atomic server runs, no newer token is accepted, and the context of work that it leaves
// running ends before. That of the hooks goes on: a hook may write to an audit table. Any other server accepts a newer
// token at once: the store decides.
func (w Wire) overtaken(t *testing.T, s Server) {
	t.Helper()
	var newer chan error
	s.Guard.Hooks = &fence.Hooks{Accepted: func(ctx context.Context, a fence.Access) {
		if s.Atomic && a.Token == 41 { // the handler's turn is over, and the server still waits for the guard
			require.ErrorIs(t, <-newer, context.Canceled)
			require.NoError(t, ctx.Err())
		}
	}}
	s.Handle = func(work context.Context) error {
		go func() { _ = s.Guard.Do("orders", 54, func() error { newer <- work.Err(); return nil }) }()
		synctest.Wait()
		require.Equal(t, s.Atomic, len(newer) == 0)
		return nil
	}
	c := w.Start(t, s)
	synctest.Test(t, func(t *testing.T) {
		newer = make(chan error, 1)
		require.NoError(t, serve(fence.NewContext(t.Context(), 41), c))
		synctest.Wait()
		require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks())
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

// A server's own check, for example a store's, gets the token and its lock. If it fails, the request is refused, and
// the client does not learn why.
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

// A handler returns the error of its store, and the client gets that error, to the digit: whose token it was, whose
// mark, and both locks. Names of any length do not hide the refusal, and no other detail of the server reaches the
// client.
func (w Wire) refusalsCross(t *testing.T, s Server) {
	t.Helper()
	const token = fence.Token(1<<62 + 1)
	var answer error
	s.Handle = func(context.Context) error { return errors.Join(errors.New("update at 10.0.0.7"), answer) }
	c := w.Start(t, s)
	ctx := fence.NewContext(t.Context(), token)
	longest := strings.Repeat("n", fence.MaxLock)
	for _, answer = range []error{
		&fence.StaleError{Resource: `a "b" é`, Token: token, Highest: token + 2},
		&fence.StaleError{Resource: "orders", Token: 41, Highest: 54, Read: true},
		&fence.StaleError{Resource: "orders", Token: 41, Highest: 54, ByReader: true},
		&fence.StaleError{Resource: "orders", Token: 41, Read: true},
		&fence.OtherLockError{Resource: `a "b" é`, Token: token, Lock: `"report" é`, Follows: "/locks/accounts"},
		&fence.OtherLockError{Resource: "orders", Token: token, Follows: "accounts"},
		&fence.OtherLockError{Resource: "orders", Token: token, Read: true, Lock: "report", Follows: "accounts"},
		&fence.OtherLockError{Resource: longest[:fence.MaxResource], Token: token, Lock: longest, Follows: longest[1:] + "m"},
	} {
		err := send(ctx, c)
		require.ErrorContains(t, err, answer.Error())
		require.NotContains(t, err.Error(), "10.0.0.7")
		if stale, ok := errors.AsType[*fence.StaleError](err); ok {
			require.Equal(t, answer, stale)
			continue
		}
		other, ok := errors.AsType[*fence.OtherLockError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, answer, other)
	}
	// Errors that only match, or have no value, are refusals too. Of two refusals the stale token counts.
	stale, other := new(fence.StaleError), new(fence.OtherLockError)
	for back, answers := range map[error][]error{
		stale: {fence.ErrStale, (*fence.StaleError)(nil), errors.Join(fence.ErrOtherLock, fence.ErrStale)},
		other: {fence.ErrOtherLock, (*fence.OtherLockError)(nil)},
	} {
		for _, answer = range answers {
			RequireRefusal(t, back, send(ctx, c), "", "")
		}
	}

	for _, long := range []string{
		strings.Repeat("n", 100_000), strings.Repeat("\xff", 2<<20), strings.Repeat("<", 100_000), strings.Repeat("\x00", 100_000),
		strings.Repeat("\u2028", 100_000), strings.Repeat(`"`, 100_000),
	} {
		answer = &fence.StaleError{Resource: long, Token: token, Highest: token + 2}
		stale, ok := errors.AsType[*fence.StaleError](send(ctx, c))
		require.True(t, ok)
		answer = &fence.OtherLockError{Resource: long, Token: token, Lock: long, Follows: long}
		other, ok := errors.AsType[*fence.OtherLockError](send(ctx, c))
		require.True(t, ok)
		require.Equal(t, []fence.Token{token, token + 2, token}, []fence.Token{stale.Token, stale.Highest, other.Token})
		for _, name := range []string{stale.Resource, other.Resource, other.Lock, other.Follows} {
			require.True(t, strings.HasSuffix(name, "…"))
		}
	}
}

// The client sends the values that its caller has set. If they contradict the context, one of the two is a mistake, so
// the client refuses.
func (w Wire) valuesOfTheCaller(t *testing.T, s Server) {
	t.Helper()
	s.CheckRead = s.Guard.CheckReadContext
	writers := w.Start(t, s)
	s.ReadOnly = true
	readers := w.Start(t, s)
	token, lock := []string{"54"}, []string{"accounts"}
	for _, set := range []Set{{}, {Write: token}, {Lock: lock}, {Write: token, Lock: lock}} {
		require.NoError(t, writers.Send(writer.Context(t.Context(), 54, "accounts"), "orders", set))
	}
	require.NoError(t, writers.Send(t.Context(), "orders", Set{Write: token, Lock: lock}))
	require.NoError(t, readers.Send(t.Context(), "orders", Set{Read: token, Lock: lock}))
	require.NoError(t, readers.Send(reader.Context(t.Context(), 54, "accounts"), "orders", Set{Read: token}))
	require.Equal(t, map[string]string{"orders": "accounts"}, s.Guard.Locks())

	for _, tt := range []struct {
		ctx context.Context //nolint:containedctx // a row
		set Set
	}{
		{writer.Context(t.Context(), 57), Set{Write: []string{"56"}}},
		{writer.Context(t.Context(), 57), Set{Write: []string{""}}},
		{writer.Context(t.Context(), 57), Set{Write: []string{"57", "57"}}},
		{writer.Context(t.Context(), 57), Set{Write: []string{"057"}}},
		{writer.Context(t.Context(), 57), Set{Read: []string{"57"}}},
		{writer.Context(t.Context(), 57), Set{Write: []string{"57"}, Read: []string{"57"}}},
		{reader.Context(t.Context(), 57), Set{Read: []string{"56"}}},
		{reader.Context(t.Context(), 57), Set{Read: []string{"57", "57"}}},
		{reader.Context(t.Context(), 57), Set{Write: []string{"57"}}},
		{reader.Context(t.Context(), 57), Set{Write: []string{"57"}, Read: []string{"57"}}},
		{writer.Context(t.Context(), 57, "accounts"), Set{Lock: []string{"report"}}},
		{writer.Context(t.Context(), 57, "accounts"), Set{Lock: []string{""}}},
		{writer.Context(t.Context(), 57, "accounts"), Set{Lock: []string{"accounts", "accounts"}}},
		{writer.Context(t.Context(), 57, "a b"), Set{Lock: []string{"a b"}}},
		{writer.Context(t.Context(), 57, "accounts", "stock"), Set{Lock: lock}},
		{writer.Context(t.Context(), 57), Set{Lock: lock}},
		{reader.Context(t.Context(), 57, "accounts"), Set{Lock: []string{"report"}}},
		{reader.Context(t.Context(), 57), Set{Lock: []string{""}}},
	} {
		for _, c := range []Client{writers, readers} {
			err := c.Send(tt.ctx, "orders", tt.set)
			require.ErrorIs(t, err, fence.ErrInvalidToken, "%q", tt.set)
			require.ErrorContains(t, err, "the context carries 57")
		}
	}
	require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks(), "nothing was sent")
}

// writer and reader make the contexts of holders.
var writer, reader = Verb{}, Verb{Reads: true}

// Inside returns the context of a function that runs under a lock inside the function of another lock, as
// lease.Session.Do does.
//
//nolint:revive // t comes first, as in other helpers
func Inside(t *testing.T, handle, caller context.Context) context.Context {
	t.Helper()
	ctx, done := scope.Work(handle, caller)
	t.Cleanup(done)
	return ctx
}

// The name arrives unchanged beside the token of a writer or a reader, whatever characters it has.
func (w Wire) locksAreCarried(t *testing.T, s Server) {
	t.Helper()
	var got tenure
	s.ReadOnly = true // so that the resource follows no lock
	s.Handle = func(ctx context.Context) error { got = tenureOf(ctx); return nil }
	c := w.Start(t, s)
	for _, lock := range []string{
		"accounts", "/locks/a-b_c.d~e", " a, b ", "100%", "%41", "ärger 世界", "a\r\nFencing-Token: 60", `"q";=`, "\x01\x7f", "+",
		strings.Repeat("n", fence.MaxLock), strings.Repeat("é", fence.MaxLock/2),
	} {
		require.NoError(t, send(writer.Context(t.Context(), 54, lock), c))
		require.Equal(t, tenure{token: 54, lock: lock, named: true}, got)
	}
	require.NoError(t, send(reader.Context(t.Context(), 54, "ärger"), c))
	require.Equal(t, tenure{read: 54, lock: "ärger", named: true}, got)

	require.NoError(t, send(fence.NewContext(t.Context(), 54), c))
	require.Equal(t, tenure{token: 54}, got, "the token came without a name")
	require.NoError(t, send(writer.Context(t.Context(), 54, "a", "b"), c))
	require.Equal(t, tenure{token: 54}, got, "two locks were granted as one")
	require.NoError(t, send(fence.ForLock(writer.Context(t.Context(), 54, "a", "b"), "b"), c))
	require.Equal(t, tenure{token: 54, lock: "b", named: true}, got)
}

// A request without a name does not get the name in the server's own context, even if the tokens are equal.
func (w Wire) lockOfTheServer(t *testing.T, s Server) {
	t.Helper()
	named := 0
	s.CheckRead = s.Guard.CheckReadContext
	s.Handle = func(ctx context.Context) error {
		if _, ok := fence.LockFromContext(ctx); ok {
			named++
		}
		return nil
	}
	writers := w.Start(t, s)
	require.NoError(t, writers.ServeIn(writer.Context(t.Context(), 54, "the server's"), fence.NewContext(t.Context(), 54)))
	s.ReadOnly = true
	readers := w.Start(t, s)
	require.NoError(t, readers.ServeIn(reader.Context(t.Context(), 55, "the server's"), fence.NewReadContext(t.Context(), 55)))
	require.Empty(t, s.Guard.Locks())
	require.Zero(t, named)
	require.NoError(t, readers.ServeIn(reader.Context(t.Context(), 55, "the server's"), reader.Context(t.Context(), 55, "accounts")))
	require.Equal(t, map[string]string{"orders": "accounts"}, s.Guard.Locks())
	require.Equal(t, 1, named)
}
