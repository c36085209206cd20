package grpcfence

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/fence"
)

// Options are the settings of a server. The zero value of a field is its default.
type Options struct {
	// Writes reports whether a method, "/package.Service/Method", writes. Its calls need a token, and the server checks
	// it. By default every method writes, including health checks and reflection.
	//
	// For a method that writes, the token of a read lock does not count. Other calls need no token. If they have one it
	// must be well-formed, and the context carries it. A writer's token is then not checked and raises no mark, since a
	// call that only reads must not fence a writer. The token of a read lock is checked if there is a check for it; see
	// CheckRead.
	Writes func(method string) bool

	// CheckRead is the check of [NewServer] for a call of a method that does not write with the token of a read lock.
	// The handler runs only if it returns nil. From then on a writer that is older than the reader must be refused, or
	// it could write while the handler reads. So for a store, call its claim for readers; for a guard, use
	// [fence.Guard.CheckReadContext]. By default such a token is not checked.
	//
	// [NewAtomicServer] checks with its guard, and CheckRead must be nil.
	CheckRead func(ctx context.Context, resource string, t fence.ReadToken) error

	// EachMessage checks the token of a stream again for each message that the server receives, before the handler gets
	// it: the stream of a holder that has lost its lock ends with the first message after its successor's claim. By
	// default the token is checked once, when the stream starts.
	EachMessage bool
}

// Server has the interceptors of a server. Create it with [NewServer] or [NewAtomicServer]. Its methods are safe for
// concurrent use.
type Server struct {
	resource func(ctx context.Context, method string, req any) string
	check    func(ctx context.Context, resource string, t fence.Token) error
	guard    *fence.Guard // handlers of unary calls run inside it; nil without [NewAtomicServer]
	opts     Options
}

var (
	_ grpc.UnaryServerInterceptor  = (*Server)(nil).Unary
	_ grpc.StreamServerInterceptor = (*Server)(nil).Stream
)

// NewServer returns interceptors that refuse calls early. They call check, for example [fence.Guard.CheckContext], with
// the call's context, resource and token, and call the handler only if check returns nil. The handler gets the token
// with [fence.FromContext], and check and handler get the name of its lock, if the call has it, with
// [fence.LockFromContext].
//
// A newer token may be accepted after check has returned and before the handler writes. So the handler must pass the
// token to its store, which compares it in one step with the write, and return the store's error. For resources in this
// process, [NewAtomicServer] has no such gap for unary calls.
//
// resource returns the name of the resource that a call writes to, or that a reader reads. It is called only for a call
// whose token is checked. req is the request of a unary call. It is nil for a stream, because no message has arrived:
// take the name from the method or from metadata. Use a bounded number of names, because marks are never deleted. If
// resource returns "" the call is refused with INTERNAL, if it returns more than [fence.MaxResource] bytes with
// INVALID_ARGUMENT.
//
// If check fails for another reason than the token, the client gets the status of the error, CANCELLED or
// DEADLINE_EXCEEDED for an error of a context, and UNAVAILABLE otherwise. Outer interceptors can match the error with
// errors.Is. The error of NewServer names the argument that is nil.
func NewServer(
	resource func(ctx context.Context, method string, req any) string,
	check func(ctx context.Context, resource string, t fence.Token) error,
	opts Options,
) (*Server, error) {
	if resource == nil {
		return nil, errors.New("grpcfence: resource is nil, want a function")
	}
	if check == nil {
		return nil, errors.New("grpcfence: check is nil, want a function")
	}
	if opts.Writes == nil {
		opts.Writes = func(string) bool { return true }
	}
	return &Server{resource: resource, check: check, opts: opts}, nil
}

// NewAtomicServer is [NewServer] for resources in this process. The handler of a unary call runs inside
// [fence.Guard.DoContext], so check and handler are one atomic step. While a handler runs, no newer token is accepted
// for the resource and no other handler runs for it. Once a newer token was accepted, no handler of an older token is
// running or will run. The handler must not call the guard for its resource; see [fence.Guard.Do].
//
// The handler must be done when it returns. An interceptor that returns before its handler, for example one that
// enforces a timeout, must come before this one in the chain. Newer tokens wait for the handler until their calls'
// contexts end.
//
// A stream is checked as with NewServer, by [fence.Guard.CheckContext], since newer tokens would otherwise wait until
// the stream ends. Its handler calls [fence.Guard.DoContext] with the stream's context to write.
//
// The handler of a method that does not write runs outside of the guard, beside any other. For the token of a read lock
// the server calls [fence.Guard.CheckReadContext] first: it waits for the function of an older writer inside the guard,
// and no older writer's function runs there from then on. A newer writer's handler may run beside the reader's, which
// has lost its lock by then. To avoid an answer with data that was read meanwhile, the reader's handler calls
// [fence.Guard.CheckReadContext] after its reads. Data that handlers share needs a mutex.
func NewAtomicServer(
	resource func(ctx context.Context, method string, req any) string, guard *fence.Guard, opts Options,
) (*Server, error) {
	if guard == nil {
		return nil, errors.New("grpcfence: guard is nil, want a *fence.Guard")
	}
	if opts.CheckRead != nil {
		return nil, errors.New("grpcfence: Options.CheckRead is set, want nil: NewAtomicServer checks with its guard")
	}
	opts.CheckRead = guard.CheckReadContext
	s, err := NewServer(resource, guard.CheckContext, opts)
	if err != nil {
		return nil, err
	}
	s.guard = guard
	return s, nil
}
