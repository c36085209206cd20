package grpcfence

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

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
	t, err := carried(ctx)
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
