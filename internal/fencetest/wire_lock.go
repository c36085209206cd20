package fencetest

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
)

// writerOf returns the context of a writer whose locks were granted as one.
func writerOf(t *testing.T, token fence.Token, locks ...string) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewContext(t.Context(), token), locks...)
}

// inside returns the context of a function that runs under a lock inside the function of another lock, as
// lease.Session.Do does.
//
//nolint:revive // t comes first, as in other helpers
func inside(t *testing.T, handle, caller context.Context) context.Context {
	t.Helper()
	ctx, done := scope.Work(handle, caller)
	t.Cleanup(done)
	return ctx
}

// readerOf returns the context of a reader whose locks were granted as one.
func readerOf(t *testing.T, token fence.ReadToken, locks ...string) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewReadContext(t.Context(), token), locks...)
}

// The name arrives unchanged beside the token of a writer or a reader, whatever characters it has.
func (w Wire) locksAreCarried(t *testing.T, s Server) {
	t.Helper()
	type carried struct {
		token fence.Token
		read  fence.ReadToken
		lock  string
		named bool
	}
	var got carried
	s.ReadOnly = true // so that the resource follows no lock
	s.Handle = func(ctx context.Context) error {
		got = carried{}
		got.token, _ = fence.FromContext(ctx)
		got.read, _ = fence.ReadFromContext(ctx)
		got.lock, got.named = fence.LockFromContext(ctx)
		return nil
	}
	c := w.Start(t, s)
	for _, lock := range []string{
		"accounts", "/locks/a-b_c.d~e", " a, b ", "100%", "%41", "ärger 世界", "a\r\nFencing-Token: 60", `"q";=`, "\x01\x7f", "+",
		strings.Repeat("n", fence.MaxLock), strings.Repeat("é", fence.MaxLock/2),
	} {
		require.NoError(t, send(writerOf(t, 54, lock), t, c, Served))
		require.Equal(t, carried{token: 54, lock: lock, named: true}, got)
	}
	require.NoError(t, send(readerOf(t, 54, "ärger"), t, c, Served))
	require.Equal(t, carried{read: 54, lock: "ärger", named: true}, got)

	require.NoError(t, send(fence.NewContext(t.Context(), 54), t, c, Served))
	require.Equal(t, carried{token: 54}, got, "the token came without a name")
	require.NoError(t, send(writerOf(t, 54, "a", "b"), t, c, Served))
	require.Equal(t, carried{token: 54}, got, "two locks were granted as one")
	require.NoError(t, send(fence.ForLock(writerOf(t, 54, "a", "b"), "b"), t, c, Served))
	require.Equal(t, carried{token: 54, lock: "b", named: true}, got)

	nested := inside(t, writerOf(t, 54, "inner"), writerOf(t, 41, "outer"))
	require.NoError(t, send(nested, t, c, Served))
	require.Equal(t, carried{token: 54, lock: "inner", named: true}, got)
	require.NoError(t, send(fence.ForLock(nested, "outer"), t, c, Served))
	require.Equal(t, carried{token: 41, lock: "outer", named: true}, got)
	require.NoError(t, send(fence.ForLock(nested, "another"), t, c, Served))
	require.Equal(t, carried{}, got)
}

// A request of another lock is refused with both names, and changes nothing: the rightful holder continues.
func (w Wire) otherLocksAreRefused(t *testing.T, s Server) {
	t.Helper()
	var served []fence.Token
	s.CheckRead = s.Guard.CheckReadContext
	s.Handle = func(ctx context.Context) error {
		token, _ := fence.FromContext(ctx)
		served = append(served, token)
		return nil
	}
	writers := w.Start(t, s)
	s.ReadOnly = true
	readers := w.Start(t, s)
	require.NoError(t, send(writerOf(t, 54, "accounts"), t, writers, Served))
	for _, token := range []fence.Token{41, 54, 60} {
		err := send(writerOf(t, token, "report"), t, writers, OtherLock)
		RequireRefusal(t, &fence.OtherLockError{Token: token, Lock: "report", Follows: "accounts"}, err, "orders", "")
		err = send(readerOf(t, fence.ReadToken(token), "report"), t, readers, OtherLock)
		RequireRefusal(t, &fence.OtherLockError{Token: token, Read: true, Lock: "report", Follows: "accounts"}, err, "orders", "")
	}
	nested := inside(t, writerOf(t, 60, "report"), writerOf(t, 55, "accounts"))
	require.ErrorIs(t, send(nested, t, writers, OtherLock), fence.ErrOtherLock)
	require.Equal(t, []fence.Token{54}, served)
	require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())

	require.ErrorIs(t, send(writerOf(t, 53, "accounts"), t, writers, Stale), fence.ErrStale)
	require.NoError(t, send(fence.ForLock(nested, "accounts"), t, writers, Served))
	require.NoError(t, send(readerOf(t, 56, "accounts"), t, readers, Served))
	require.NoError(t, send(fence.ForLock(writerOf(t, 57, "stock", "accounts"), "accounts"), t, writers, Served))
	require.Equal(t, []fence.Token{54, 55, 0, 57}, served)

	require.NoError(t, s.Guard.Move("orders", 58, "report"))
	require.NoError(t, send(writerOf(t, 60, "report"), t, writers, Served))
	err := send(writerOf(t, 61, "accounts"), t, writers, OtherLock)
	RequireRefusal(t, &fence.OtherLockError{Token: 61, Lock: "accounts", Follows: "report"}, err, "orders", "")
}

// A token without a name, for example of an older client, is refused if the resource follows a lock, unless the guard
// allows it.
func (w Wire) tokensWithoutALock(t *testing.T, s Server) {
	t.Helper()
	for _, allowed := range []bool{false, true} {
		s := s
		s.Guard = &fence.Guard{AllowUnnamed: allowed}
		s.CheckRead = s.Guard.CheckReadContext
		writers := w.Start(t, s)
		s.ReadOnly = true
		readers := w.Start(t, s)
		bare := func(token fence.Token) context.Context { return fence.NewContext(t.Context(), token) }
		require.NoError(t, send(bare(41), t, writers, Served), "the resource follows no lock")
		require.NoError(t, send(writerOf(t, 54, "accounts"), t, writers, Served))
		require.ErrorIs(t, send(bare(41), t, writers, Stale), fence.ErrStale)
		set := writerOf(t, 55, "accounts", "stock")
		if allowed {
			require.NoError(t, send(set, t, writers, Served))
			require.NoError(t, send(t.Context(), t, writers, Served, "56"))
			require.NoError(t, send(fence.NewReadContext(t.Context(), 57), t, readers, Served))
			require.Equal(t, map[string]string{"orders": "accounts"}, s.Guard.Locks())
			continue
		}
		want := &fence.OtherLockError{Token: 55, Follows: "accounts"}
		for _, err := range []error{
			send(set, t, writers, OtherLock), send(bare(55), t, writers, OtherLock), send(t.Context(), t, writers, OtherLock, "55"),
		} {
			RequireRefusal(t, want, err, "orders", "")
		}
		want.Read = true
		RequireRefusal(t, want, send(fence.NewReadContext(t.Context(), 55), t, readers, OtherLock), "orders", "")
	}
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
	got, err := writers.ServeIn(writerOf(t, 54, "the server's"), fence.NewContext(t.Context(), 54))
	require.Equal(t, Served, got, "%v", err)
	s.ReadOnly = true
	readers := w.Start(t, s)
	got, err = readers.ServeIn(readerOf(t, 55, "the server's"), fence.NewReadContext(t.Context(), 55))
	require.Equal(t, Served, got, "%v", err)
	require.Empty(t, s.Guard.Locks())
	require.Zero(t, named)
	got, err = readers.ServeIn(readerOf(t, 55, "the server's"), readerOf(t, 55, "accounts"))
	require.Equal(t, Served, got, "%v", err)
	require.Equal(t, map[string]string{"orders": "accounts"}, s.Guard.Locks())
	require.Equal(t, 1, named)
}

// A name in a malformed encoding (package wire tests the encoding), two names, and a name without a token are refused
// like a malformed token.
func (w Wire) malformedLocks(t *testing.T, s Server) {
	t.Helper()
	for _, readOnly := range []bool{false, true} {
		s := s
		s.ReadOnly, s.CheckRead = readOnly, s.Guard.CheckReadContext
		s.Handle = func(context.Context) error { t.Error("the handler has run"); return nil }
		c := w.Start(t, s)
		token := Set{Write: []string{"54"}}
		for _, token := range []Set{token, {Read: []string{"54"}}} {
			for _, values := range [][]string{
				{""},
				{"%c3%a9"},
				{"a", "a"},
				{"a", "b"},
				{strings.Repeat("n", fence.MaxLock+1)},
			} {
				token.Lock = values
				require.ErrorIs(t, sendSet(t.Context(), t, c, Invalid, token), fence.ErrInvalidToken)
			}
		}
		require.ErrorIs(t, sendSet(t.Context(), t, c, Invalid, Set{Lock: []string{"accounts"}}), fence.ErrInvalidToken)
		for _, ctx := range []context.Context{
			writerOf(t, 54, ""), writerOf(t, 54, "\xff"), readerOf(t, 54, strings.Repeat("n", fence.MaxLock+1)),
		} {
			_, err := c.Send(ctx, "orders", Set{})
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, "its lock's name", "the client reports it and sends nothing")
		}
	}
	require.Empty(t, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
}
