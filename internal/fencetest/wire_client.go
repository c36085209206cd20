package fencetest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// A handler returns the error of its store, and the client gets that error, to the digit: whose token it was, whose mark,
// and both locks. Names of any length do not hide the refusal, and no other detail of the server reaches the client.
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

// The client sends the values that its caller has set. If they contradict the context, one of the two is a mistake, so the
// client refuses.
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
