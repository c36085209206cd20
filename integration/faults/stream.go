package faults

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (i *Interceptor) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, end := context.WithCancelCause(ctx)
	inner, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		end(nil)
		return nil, err
	}
	return &clientStream{inner, i, method, ctx, end}, nil
}

// clientStream is a stream whose messages meet faults.
type clientStream struct {
	grpc.ClientStream

	in     *Interceptor
	method string
	life   context.Context         //nolint:containedctx // the stream's
	end    context.CancelCauseFunc // a fault breaks the stream by it; its user gets the cause from RecvMsg
}

// SendMsg sends a request.
func (s *clientStream) SendMsg(msg any) error {
	if s.brokenBy() != nil {
		// As in gRPC, SendMsg returns io.EOF and RecvMsg returns the reason.
		return io.EOF
	}
	s.in.count(s.in.sent, s.method)
	if j := s.in.take(false, s.method, msg, true); j != nil {
		if j.rule.Fault == LoseRequest {
			// gRPC's SendMsg succeeds once the connection has taken the message, so it does not see the loss.
			if !j.rule.Silent {
				s.end(j.lost(s.Context(), "request"))
			}
			return nil
		}
		if err := j.wait(s.Context()); err != nil {
			return err
		}
	}
	return s.ClientStream.SendMsg(msg)
}

// RecvMsg waits for the next answer that is not lost.
func (s *clientStream) RecvMsg(msg any) error {
	for {
		if err := s.ClientStream.RecvMsg(msg); err != nil {
			// The stream has ended. gRPC frees its resources when its context ends.
			s.end(nil)
			if broken := s.brokenBy(); broken != nil {
				return broken
			}
			return err
		}
		s.in.count(s.in.answered, s.method)
		j := s.in.take(true, s.method, msg, true)
		if j == nil {
			return nil
		}
		switch {
		case j.rule.Fault == DelayAnswer:
			return j.wait(s.Context())
		case !j.rule.Silent:
			err := j.lost(s.Context(), "answer")
			s.end(err)
			return err
		}
	}
}

// brokenBy returns the error of the fault that has broken the stream, nil if none has.
func (s *clientStream) brokenBy() error {
	if err := context.Cause(s.life); status.Code(err) == codes.Unavailable {
		return err
	}
	return nil
}
