package fencetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// Outcome is the answer to a request.
type Outcome int

// The outcomes. Each wire has a status for each of them.
const (
	Served Outcome = iota
	Stale
	OtherLock
	Missing
	Invalid
	NoResource
	LongResource
	Unchecked // the check failed for another reason than the token
	Ended     // the context ended while the request waited for its turn
)

// Server is the configuration of a server under test.
type Server struct {
	Atomic   bool
	Guard    *fence.Guard
	Check    func(ctx context.Context, resource string, t fence.Token) error // nil: the Guard's; not with Atomic
	ReadOnly bool                                                            // no request writes

	// CheckRead is the check of readers; nil: none. With Atomic it is the Guard's.
	CheckRead func(ctx context.Context, resource string, t fence.ReadToken) error

	Handle func(ctx context.Context) error // the handler; nil: it does nothing
}

// Set has the values that the caller of a client has set itself: for a writer's token, for a reader's token, and for
// the lock.
type Set struct{ Write, Read, Lock []string }

// Client sends requests to a server.
type Client interface {
	// Send sends a request for a resource over the network, with the token of ctx, as the wire's client does, and with
	// the values in set.
	Send(ctx context.Context, resource string, set Set) (Outcome, error)

	// ServeIn makes the server serve a request for "orders" in this goroutine, without a network. The request has the
	// token and the lock of the context client; its context at the server is server.
	ServeIn(server, client context.Context) (Outcome, error)
}

// serve makes the server serve a request for "orders" with the token of ctx, in a context that carries no token and
// ends with ctx.
func serve(ctx context.Context, c Client) (Outcome, error) {
	return c.ServeIn(fence.NewContext(ctx, 0), ctx)
}

// Wire is a protocol that carries tokens: a client and both kinds of servers.
type Wire struct {
	Missing error // the sentinel of the client's error for a request without a token
	Start   func(t *testing.T, s Server) Client
}

// Run tests what all wires have in common.
func (w Wire) Run(t *testing.T) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Server){
		"refuses and accepts":             w.refusesAndAccepts,
		"readers raise no mark":           w.readersRaiseNoMark,
		"resource is that of the request": w.resourceOfTheRequest,
		"refusals cross the wire":         w.refusalsCross,
		"values of the caller":            w.valuesOfTheCaller,
		"a wait ends with its context":    w.waitEnds,
		"only atomic cannot be overtaken": w.overtaken,
		"a handler that panics":           w.panics,
		"a failed check leaks nothing":    w.failedCheck,

		"readers are checked":                w.readersAreChecked,
		"readers are served without a check": w.readersUnchecked,
		"readers do not write":               w.readersDoNotWrite,
		"others beside a reader":             w.besideAReader,

		"the lock is carried along":          w.locksAreCarried,
		"another lock is refused":            w.otherLocksAreRefused,
		"tokens without a lock":              w.tokensWithoutALock,
		"the lock is not that of the server": w.lockOfTheServer,
		"malformed locks":                    w.malformedLocks,
	} {
		for kind, atomic := range map[string]bool{"early": false, "atomic": true} {
			t.Run(name+"/"+kind, func(t *testing.T) { test(t, Server{Atomic: atomic, Guard: &fence.Guard{MaxEra: 32767}}) })
		}
	}
}

// send sends a request for "orders" and compares the outcome.
func send(ctx context.Context, t *testing.T, c Client, want Outcome, values ...string) error {
	t.Helper()
	return sendSet(ctx, t, c, want, Set{Write: values})
}

func sendSet(ctx context.Context, t *testing.T, c Client, want Outcome, set Set) error {
	t.Helper()
	got, err := c.Send(ctx, "orders", set)
	require.Equal(t, want, got, "%q: %v", set, err)
	return err
}

func (w Wire) refusesAndAccepts(t *testing.T, s Server) {
	t.Helper()
	require.NoError(t, s.Guard.Claim("orders", 54))
	var served []fence.Token
	s.Handle = func(ctx context.Context) error {
		token, _ := fence.FromContext(ctx)
		served = append(served, token)
		return nil
	}
	c := w.Start(t, s)
	err := send(fence.NewContext(t.Context(), 41), t, c, Stale)
	RequireRefusal(t, &fence.StaleError{Token: 41, Highest: 54}, err, "orders", "")
	require.ErrorIs(t, send(t.Context(), t, c, Missing), w.Missing)
	for _, values := range [][]string{{"054"}, {"0"}, {""}, {"54,54"}, {"54, 54"}, {"54", "54"}, {"54", "55"}} {
		require.ErrorIs(t, send(t.Context(), t, c, Invalid, values...), fence.ErrInvalidToken)
	}
	require.Empty(t, served, "no refused request reaches the handler")
	require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks())

	for _, token := range []fence.Token{54, 54, 60} {
		require.NoError(t, send(fence.NewContext(t.Context(), token), t, c, Served))
	}
	require.Equal(t, []fence.Token{54, 54, 60}, served)
	require.Equal(t, map[string]fence.Token{"orders": 60}, s.Guard.Marks())
}

func (w Wire) readersRaiseNoMark(t *testing.T, s Server) {
	t.Helper()
	require.NoError(t, s.Guard.Claim("orders", 54))
	var carried []fence.Token
	s.ReadOnly, s.CheckRead = true, s.Guard.CheckReadContext // it must ignore writers' tokens
	s.Handle = func(ctx context.Context) error {
		token, _ := fence.FromContext(ctx)
		carried = append(carried, token)
		return nil
	}
	c := w.Start(t, s)
	for _, token := range []fence.Token{0, 41, 60} {
		got, err := c.Send(fence.NewContext(t.Context(), token), "", Set{}) // no resource is needed
		require.Equal(t, Served, got, "%v", err)
	}
	require.Equal(t, []fence.Token{0, 41, 60}, carried)
	require.ErrorIs(t, send(t.Context(), t, c, Invalid, "060"), fence.ErrInvalidToken)
	require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
}

func (w Wire) resourceOfTheRequest(t *testing.T, s Server) {
	t.Helper()
	served := 0
	s.Handle = func(context.Context) error { served++; return nil }
	c := w.Start(t, s)
	for _, tt := range []struct {
		resource string
		want     Outcome
	}{
		{"a", Served},
		{"b", Served},
		{strings.Repeat("n", fence.MaxResource), Served},
		{"", NoResource},
		{strings.Repeat("n", fence.MaxResource+1), LongResource},
	} {
		got, err := c.Send(fence.NewContext(t.Context(), 54), tt.resource, Set{})
		require.Equal(t, tt.want, got, "%d bytes: %v", len(tt.resource), err)
	}
	require.Equal(t, 3, served)
	require.Len(t, s.Guard.Marks(), 3)
}

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
