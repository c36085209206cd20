package grpcfence

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
)

// call is what the interceptors have read of a call.
type call struct {
	token    fence.Token
	resource string
	checked  bool // the method writes
}

// Unary is the interceptor of unary calls, for [grpc.ChainUnaryInterceptor].
func (s *Server) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	ctx, c, err := s.read(ctx, info.FullMethod, req)
	if err != nil {
		return nil, err
	}
	if !c.checked {
		resp, err := handle(ctx, req)
		return resp, Error(err)
	}
	if s.guard == nil {
		if err := s.check(ctx, c.resource, c.token); err != nil {
			return nil, unchecked(err)
		}
		resp, err := handle(ctx, req)
		return resp, Error(err)
	}
	var resp any
	err = s.guard.Do(c.resource, c.token, func() (err error) {
		resp, err = handle(ctx, req)
		return err
	})
	return resp, Error(err) // Do has no errors but refusals and those of the handler
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
	if c.checked {
		check := func() error {
			if err := s.check(ctx, c.resource, c.token); err != nil {
				return unchecked(err)
			}
			return nil
		}
		if err := check(); err != nil {
			return err
		}
		if s.opts.EachMessage {
			fenced.check = check
		}
	}
	return Error(handle(srv, fenced))
}

// read returns the context that carries the call's token.
func (s *Server) read(ctx context.Context, method string, req any) (context.Context, call, error) {
	token, err := FromIncomingContext(ctx)
	checked := s.opts.Writes(method)
	if errors.Is(err, ErrMissing) && !checked {
		return ctx, call{}, nil
	}
	if err != nil {
		return nil, call{}, Error(err)
	}
	ctx = fence.NewContext(ctx, token)
	c := call{token: token, checked: checked}
	if checked {
		if c.resource = s.resource(ctx, method, req); c.resource == "" {
			return nil, call{}, status.Error(codes.Internal, "grpcfence: the call names no resource")
		}
	}
	return ctx, c, nil
}

// serverStream is a stream whose context carries its token.
type serverStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // a grpc.ServerStream has one
	check func() error    // nil: not with each message
}

// Context is that of the stream, with the token.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg is that of the stream. A message that came with a token that is stale by now is not the handler's: its error
// is for the handler to return.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.check == nil {
		return err
	}
	return s.check()
}
