package fencetest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// A request that reads under a read lock raises the read mark before its handler runs, or is refused.
func (w Wire) readersAreChecked(t *testing.T, s Server) {
	t.Helper()
	require.NoError(t, s.Guard.Claim("orders", 54))
	reader := func(token fence.ReadToken) context.Context { return fence.NewReadContext(t.Context(), token) }
	var served []fence.ReadToken
	s.ReadOnly, s.CheckRead = true, s.Guard.CheckReadContext
	s.Handle = func(ctx context.Context) error {
		if token, ok := fence.FromContext(ctx); ok {
			t.Errorf("a reader's handler has got the writer's token %d", token)
		}
		token, _ := fence.ReadFromContext(ctx)
		served = append(served, token)
		return nil
	}
	readers := w.Start(t, s)
	err := send(reader(41), t, readers, Stale)
	RequireRefusal(t, &fence.StaleError{Token: 41, Highest: 54, Read: true}, err, "orders", "")
	for _, values := range [][]string{{"054"}, {"0"}, {""}, {"54,54"}, {"54", "54"}, {"54", "55"}} {
		require.ErrorIs(t, sendSet(t.Context(), t, readers, Invalid, Set{Read: values}), fence.ErrInvalidToken)
	}
	both := Set{Write: []string{"60"}, Read: []string{"60"}}
	require.ErrorIs(t, sendSet(t.Context(), t, readers, Invalid, both), fence.ErrInvalidToken)
	for resource, want := range map[string]Outcome{"": NoResource, strings.Repeat("n", fence.MaxResource+1): LongResource} {
		got, err := readers.Send(reader(60), resource, Set{})
		require.Equal(t, want, got, "%v", err)
	}
	require.Empty(t, served, "no refused request reaches the handler")
	require.Empty(t, s.Guard.ReadMarks())

	for _, token := range []fence.ReadToken{54, 60, 58} {
		require.NoError(t, send(reader(token), t, readers, Served))
	}
	require.Equal(t, []fence.ReadToken{54, 60, 58}, served)
	require.Equal(t, map[string]fence.ReadToken{"orders": 60}, s.Guard.ReadMarks())
	require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks())

	s.ReadOnly, s.Handle = false, nil
	writers := w.Start(t, s)
	err = send(fence.NewContext(t.Context(), 59), t, writers, Stale)
	RequireRefusal(t, &fence.StaleError{Token: 59, Highest: 60, ByReader: true}, err, "orders", "")
	require.NoError(t, send(fence.NewContext(t.Context(), 61), t, writers, Served))
	err = send(reader(60), t, readers, Stale)
	RequireRefusal(t, &fence.StaleError{Token: 60, Highest: 61, Read: true}, err, "orders", "")
}

// A server without a check of readers serves their requests unchecked.
func (w Wire) readersUnchecked(t *testing.T, s Server) {
	t.Helper()
	if s.Atomic {
		return
	}
	require.NoError(t, s.Guard.Claim("orders", 54))
	var carried fence.ReadToken
	s.ReadOnly = true
	s.Handle = func(ctx context.Context) error {
		carried, _ = fence.ReadFromContext(ctx)
		return nil
	}
	c := w.Start(t, s)
	got, err := c.Send(fence.NewReadContext(t.Context(), 41), "", Set{}) // no resource is needed
	require.Equal(t, Served, got, "%v", err)
	require.Equal(t, fence.ReadToken(41), carried)
	require.ErrorIs(t, sendSet(t.Context(), t, c, Invalid, Set{Read: []string{"060"}}), fence.ErrInvalidToken)
	require.Empty(t, s.Guard.ReadMarks())
}

// For a request that writes, the token of a read lock counts as no token. This keeps a reader from writing, also at an
// older server.
func (w Wire) readersDoNotWrite(t *testing.T, s Server) {
	t.Helper()
	s.CheckRead = s.Guard.CheckReadContext
	s.Handle = func(context.Context) error { t.Error("the handler has run"); return nil }
	c := w.Start(t, s)
	require.ErrorIs(t, send(fence.NewReadContext(t.Context(), 54), t, c, Missing), w.Missing)
	for _, write := range []string{"54", "55"} {
		err := sendSet(t.Context(), t, c, Invalid, Set{Write: []string{write}, Read: []string{"54"}})
		require.ErrorIs(t, err, fence.ErrInvalidToken)
	}
	require.Empty(t, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
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
