package fencetest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// The refusals of a server that are not those of a token. Each wire has a status for each of them.
var (
	ErrNoResource   = errors.New("the request names no resource")
	ErrLongResource = errors.New("the resource's name is too long")
	ErrUnchecked    = errors.New("the token could not be checked")
)

// Server is the configuration of a server under test.
type Server struct {
	Atomic   bool
	Guard    *fence.Guard
	Check    func(ctx context.Context, resource string, t fence.Token) error // not with Atomic
	ReadOnly bool                                                            // no request writes

	// CheckRead is the check of readers; nil: none. With Atomic it is the Guard's.
	CheckRead func(ctx context.Context, resource string, t fence.ReadToken) error

	Handle func(ctx context.Context) error
}

// Set has the values that the caller of a client has set itself: for a writer's token, for a reader's token, and for
// the lock.
type Set struct{ Write, Read, Lock []string }

// Client sends requests to a server.
type Client interface {
	// Send sends a request for a resource over the network, with the token of ctx, as the wire's client does, and with
	// the values in set. It returns the client's error, and one of the above for a refusal of their kind.
	Send(ctx context.Context, resource string, set Set) error

	// ServeIn makes the server serve a request for "orders" in this goroutine, without a network. The request has the
	// token and the lock of the context client; its context at the server is server.
	ServeIn(server, client context.Context) error
}

// serve makes the server serve a request for "orders" with the token of ctx, in a context that carries no token and
// ends with ctx.
func serve(ctx context.Context, c Client) error {
	return c.ServeIn(fence.NewContext(ctx, 0), ctx)
}

// Wire is a protocol that carries tokens: a client and both kinds of servers.
type Wire struct {
	Missing error // the sentinel of the client's error for a request without a token
	Start   func(t *testing.T, s Server) Client
	Early   bool // no server of it is atomic
}

// Run tests what all wires have in common.
func (w Wire) Run(t *testing.T) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Server){
		"rules":                              w.rules,
		"refuses what is malformed":          w.malformed,
		"served without a check":             w.unchecked,
		"refusals cross the wire":            w.refusalsCross,
		"values of the caller":               w.valuesOfTheCaller,
		"a wait ends with its context":       w.waitEnds,
		"only atomic cannot be overtaken":    w.overtaken,
		"a handler that panics":              w.panics,
		"a failed check leaks nothing":       w.failedCheck,
		"others beside a reader":             w.besideAReader,
		"the lock is carried along":          w.locksAreCarried,
		"the lock is not that of the server": w.lockOfTheServer,
	} {
		for kind, atomic := range map[string]bool{"early": false, "atomic": true} {
			if atomic && w.Early {
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				g := &fence.Guard{MaxEra: 32767}
				test(t, Server{Atomic: atomic, Guard: g, Check: g.CheckContext, Handle: func(context.Context) error { return nil }})
			})
		}
	}
}

// send sends a request for "orders".
func send(ctx context.Context, c Client) error { return c.Send(ctx, "orders", Set{}) }

// tenure is what a context carries.
type tenure struct {
	token fence.Token
	read  fence.ReadToken
	lock  string
	named bool
}

func tenureOf(ctx context.Context) (c tenure) {
	c.token, _ = fence.FromContext(ctx)
	c.read, _ = fence.ReadFromContext(ctx)
	c.lock, c.named = fence.LockFromContext(ctx)
	return c
}

// The guard decides about each request, of a writer or a reader, by the rule of all stores. The handler runs only if the
// token was accepted, with what the client's context carries. The client gets the refusal.
func (w Wire) rules(t *testing.T, s Server) {
	t.Helper()
	told, carried := make(Told, 9), tenure{}
	s.Guard.Hooks, s.CheckRead = told.Hooks(), s.Guard.CheckReadContext
	s.Handle = func(ctx context.Context) error { carried = tenureOf(ctx); return nil }
	rules := Rules{
		Verbs: map[string]Verb{}, Lax: map[string]Verb{}, Told: told,
		Marks: func(_ *testing.T, resource string) Marks {
			return Marks{s.Guard.Marks()[resource], fence.Token(s.Guard.ReadMarks()[resource]), s.Guard.Locks()[resource]}
		},
	}
	for _, name := range []string{"Claim", "ClaimRead"} {
		s.ReadOnly = name == "ClaimRead"
		c := w.Start(t, s)
		verb := func(lax bool) Verb {
			return Verb{Reads: name == "ClaimRead", Call: func(ctx context.Context, resource string) error {
				s.Guard.AllowUnnamed, carried = lax, tenure{}
				err, served := c.Send(ctx, resource, Set{}), tenureOf(ctx)
				if stale, ok := errors.AsType[*fence.StaleError](err); ok {
					served, err = tenure{}, stale
				} else if other, ok := errors.AsType[*fence.OtherLockError](err); ok {
					served, err = tenure{}, other
				}
				require.Equal(t, served, carried)
				return err
			}}
		}
		rules.Verbs[name], rules.Lax[name] = verb(false), verb(true)
		require.NoError(t, c.Send(rules.Verbs[name].Context(t.Context(), 54), strings.Repeat("n", fence.MaxResource), Set{}))
	}
	rules.Decide(t)
}

// A malformed token or name, two of either, and a name without a token are refused, whether the request writes or not.
// So is a resource without a name or with a long one, and a request that writes and has no writer's token: the token of
// a reader does not count, also at an older server. Nothing of these reaches the handler or raises a mark. Package wire
// tests more spellings.
func (w Wire) malformed(t *testing.T, s Server) {
	t.Helper()
	s.CheckRead = s.Guard.CheckReadContext
	s.Handle = func(context.Context) error { t.Error("the handler has run"); return nil }
	long, token := strings.Repeat("n", fence.MaxLock+1), []string{"54"}
	sets := []Set{{Lock: []string{"accounts"}}, {Write: token, Read: token}, {Write: []string{"55"}, Read: token}}
	for _, values := range [][]string{{"054"}, {"0"}, {""}, {"54,54"}, {"54, 54"}, {"54", "54"}, {"54", "55"}} {
		sets = append(sets, Set{Write: values}, Set{Read: values})
	}
	for _, values := range [][]string{{""}, {"%c3%a9"}, {"a", "a"}, {"a", "b"}, {long}} {
		sets = append(sets, Set{Write: token, Lock: values}, Set{Read: token, Lock: values})
	}
	for _, s.ReadOnly = range []bool{false, true} {
		c := w.Start(t, s)
		for _, set := range sets {
			require.ErrorIs(t, c.Send(t.Context(), "orders", set), fence.ErrInvalidToken)
		}
		for _, ctx := range []context.Context{writer.Context(t.Context(), 54, ""), writer.Context(t.Context(), 54, "\xff"), reader.Context(t.Context(), 54, long)} {
			err := send(ctx, c)
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, "its lock's name", "the client reports it and sends nothing")
		}
		for resource, want := range map[string]error{"": ErrNoResource, strings.Repeat("n", fence.MaxResource+1): ErrLongResource} {
			require.ErrorIs(t, c.Send(Verb{Reads: s.ReadOnly}.Context(t.Context(), 54), resource, Set{}), want)
		}
		if !s.ReadOnly {
			require.ErrorIs(t, send(t.Context(), c), w.Missing)
			require.ErrorIs(t, send(fence.NewReadContext(t.Context(), 54), c), w.Missing)
		}
	}
	require.Empty(t, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
}

// A request that does not write is served whatever writer's token it has, also where the tokens of readers are checked,
// and whatever reader's token if there is no check of readers. Its token is carried along and raises no mark, and it
// needs no resource.
func (w Wire) unchecked(t *testing.T, s Server) {
	t.Helper()
	require.NoError(t, s.Guard.Claim("orders", 54))
	var carried tenure
	s.ReadOnly = true
	s.Handle = func(ctx context.Context) error { carried = tenureOf(ctx); return nil }
	none := w.Start(t, s)
	s.CheckRead = s.Guard.CheckReadContext
	checked := w.Start(t, s)
	serves := func(ctx context.Context, c Client) {
		require.NoError(t, c.Send(ctx, "", Set{}))
		require.Equal(t, tenureOf(ctx), carried)
	}
	for _, token := range []fence.Token{0, 41, 60} {
		serves(fence.NewContext(t.Context(), token), none)
		serves(fence.NewContext(t.Context(), token), checked)
	}
	if !s.Atomic { // the other checks with its guard
		serves(fence.NewReadContext(t.Context(), 41), none)
		require.ErrorIs(t, none.Send(t.Context(), "orders", Set{Read: []string{"060"}}), fence.ErrInvalidToken)
	}
	require.Equal(t, map[string]fence.Token{"orders": 54}, s.Guard.Marks())
	require.Empty(t, s.Guard.ReadMarks())
}
