package fencetest

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
)

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

	nested := Inside(t, writer.Context(t.Context(), 54, "inner"), writer.Context(t.Context(), 41, "outer"))
	require.NoError(t, send(nested, c))
	require.Equal(t, tenure{token: 54, lock: "inner", named: true}, got)
	require.NoError(t, send(fence.ForLock(nested, "outer"), c))
	require.Equal(t, tenure{token: 41, lock: "outer", named: true}, got)
	require.NoError(t, send(fence.ForLock(nested, "another"), c))
	require.Equal(t, tenure{}, got)
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
