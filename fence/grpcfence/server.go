package grpcfence

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/fence"
)

// Options are what may be set for a server. The zero value is the default.
type Options struct {
	// Writes reports whether a method, "/package.Service/Method", writes: then its calls need a token, which is
	// checked. The default is that every method does, health checks and reflection included.
	//
	// The token of another call is never checked and raises no mark, since a reader must not fence a writer. If it
	// has one it must be well-formed all the same, and its context carries it.
	Writes func(method string) bool

	// EachMessage checks the token of a stream again with each message that the server receives, before the
	// handler gets it: the stream of a holder that has lost its lock ends with the first message after its
	// successor's claim. Otherwise it is checked once, when the stream starts.
	EachMessage bool
}

// Server has the interceptors of a server. Make one with [NewServer] or [NewAtomicServer]. Its methods are safe
// for concurrent use.
type Server struct {
	resource func(ctx context.Context, method string, req any) string
	check    func(ctx context.Context, resource string, t fence.Token) error
	guard    *fence.Guard // for the handlers of unary calls to run in; nil: checked before
	opts     Options
}

var (
	_ grpc.UnaryServerInterceptor  = (*Server)(nil).Unary
	_ grpc.StreamServerInterceptor = (*Server)(nil).Stream
)

// GuardCheck returns the check of a guard in memory, for [NewServer]. It is nil if g is nil.
func GuardCheck(g *fence.Guard) func(ctx context.Context, resource string, t fence.Token) error {
	if g == nil {
		return nil
	}
	return func(_ context.Context, resource string, t fence.Token) error { return g.Check(resource, t) }
}

// NewServer returns interceptors that refuse calls early: check is called before the handler, with the call's
// context, its resource and its token, and the handler is not called if check returns an error. The handler finds the
// token with [fence.FromContext].
//
// It does not decide: a newer token may be accepted after check has returned and before the handler writes, so the
// handler still has to hand the token to its store, which compares it in one step with the write, and to return the
// store's error. Where the resource lives in this process, [NewAtomicServer] leaves no such gap for unary calls.
//
// The resource function names the resource that a call writes to. req is the request of a unary call, and nil for a
// stream, whose messages have not arrived: there the name must come from the method or from metadata. Let there be a
// bounded number of names, for a mark is never forgotten. It is not called for a method that does not write. If it
// returns "" the call is refused with INTERNAL.
//
// An error of check that is no refusal of a token is UNAVAILABLE to the client, unless it has a status or is a
// context's; interceptors further out see it with errors.Is. NewServer's own error names what is nil.
func NewServer(
	resource func(ctx context.Context, method string, req any) string,
	check func(ctx context.Context, resource string, t fence.Token) error,
	opts Options,
) (*Server, error) {
	if resource == nil {
		return nil, errors.New("grpcfence: resource: nil, want a function")
	}
	if check == nil {
		return nil, errors.New("grpcfence: check: nil, want a function")
	}
	if opts.Writes == nil {
		opts.Writes = func(string) bool { return true }
	}
	return &Server{resource: resource, check: check, opts: opts}, nil
}

// NewAtomicServer is [NewServer] for resources in this process: the handler of a unary call runs inside
// [fence.Guard.Do], so that check and handler are one atomic step. While the handler of one token runs, no newer
// token is accepted for the resource and no other handler runs for it; once a newer token has been accepted, no handler
// of an older one is running or will run. The handler must not call the guard for the resource, as with Do.
//
// A stream is checked as NewServer does it, with [fence.Guard.Check]: newer tokens would wait for as long as it
// lasts. Its handler calls Do for what it writes.
func NewAtomicServer(
	resource func(ctx context.Context, method string, req any) string, guard *fence.Guard, opts Options,
) (*Server, error) {
	if guard == nil {
		return nil, errors.New("grpcfence: guard: nil, want a guard")
	}
	s, err := NewServer(resource, GuardCheck(guard), opts)
	if err != nil {
		return nil, err
	}
	s.guard = guard
	return s, nil
}
