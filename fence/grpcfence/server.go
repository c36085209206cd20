package grpcfence

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
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

// call has the data of a call that the interceptors use.
type call struct {
	token    wire.Token
	resource string
	writes   bool
	checked  bool // the token needs a check
}

// Unary is the interceptor of unary calls, for [grpc.ChainUnaryInterceptor].
func (s *Server) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	ctx, c, err := s.read(ctx, info.FullMethod, req)
	if err != nil {
		return nil, err
	}
	if s.guard == nil || !c.writes {
		if err := s.verify(ctx, c); err != nil {
			return nil, err
		}
		resp, err := handle(ctx, req)
		return resp, Error(err)
	}
	var resp any
	ran := false
	work, cancel := context.WithCancel(ctx) // not for the guard: its hooks get a context that goes on
	defer cancel()
	err = s.guard.DoContext(ctx, c.resource, c.token.Write, func() (err error) {
		ran = true
		defer cancel() // before a newer token is accepted: work that the handler left running gets the signal to stop
		resp, err = handle(work, req)
		return err
	})
	if !ran {
		return nil, unchecked(err)
	}
	return resp, Error(err)
}

// Stream is the interceptor of streams, for [grpc.ChainStreamInterceptor]. The stream's context carries the token.
func (s *Server) Stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	ctx, c, err := s.read(stream.Context(), info.FullMethod, nil)
	if err != nil {
		return err
	}
	fenced := &serverStream{ServerStream: stream, ctx: ctx}
	if err := s.verify(ctx, c); err != nil {
		return err
	}
	if s.opts.EachMessage {
		fenced.check = func() error { return s.verify(ctx, c) }
	}
	return Error(handle(srv, fenced))
}

// read returns the context that carries the call's token.
func (s *Server) read(ctx context.Context, method string, req any) (context.Context, call, error) {
	if s == nil || s.opts.Writes == nil {
		return nil, call{}, status.Error(codes.Internal, "grpcfence: Server is nil or zero, want one created by NewServer or NewAtomicServer")
	}
	values := func(key string) []string { return metadata.ValueFromIncomingContext(ctx, key) }
	t, err := wire.Carried("metadata", keys, values)
	c := call{token: t, writes: s.opts.Writes(method)}
	if err == nil && c.writes && t.Write == 0 {
		err = ErrMissing
	}
	if err != nil {
		return nil, call{}, Error(err)
	}
	ctx = t.In(ctx)
	if !c.writes && (t.Read == 0 || s.opts.CheckRead == nil) {
		return ctx, c, nil
	}
	c.resource = s.resource(ctx, method, req)
	switch n := len(c.resource); {
	case n == 0:
		return nil, call{}, status.Error(codes.Internal, "grpcfence: the call names no resource")
	case n > fence.MaxResource:
		return nil, call{}, status.Errorf(codes.InvalidArgument,
			"grpcfence: the call's resource has %d bytes, want 1 to %d", n, fence.MaxResource)
	}
	c.checked = true
	return ctx, c, nil
}

// verify checks the token of a call that needs a check.
func (s *Server) verify(ctx context.Context, c call) error {
	var err error
	switch {
	case !c.checked:
	case c.writes:
		err = s.check(ctx, c.resource, c.token.Write)
	default:
		err = s.opts.CheckRead(ctx, c.resource, c.token.Read)
	}
	if err != nil {
		return unchecked(err)
	}
	return nil
}

// serverStream is a stream with the token in its context.
type serverStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // a grpc.ServerStream has one
	check func() error    // for each message; may be nil
}

// Context returns the stream's context with the token and the name of its lock.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message. If the token is refused now, RecvMsg returns an error, which the handler is to return.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.check == nil {
		return err
	}
	return s.check()
}
