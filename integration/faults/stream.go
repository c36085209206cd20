package faults

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
)

func (i *Interceptor) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	inner, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &clientStream{ClientStream: inner, in: i, method: method, cancel: cancel}, nil
}

// clientStream is a stream whose messages meet faults.
type clientStream struct {
	grpc.ClientStream

	in     *Interceptor
	method string
	cancel context.CancelFunc

	mu     sync.Mutex // guards broken
	broken error      // set when a fault has broken the stream
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
				s.breakOff(j.lost(s.Context(), "request"))
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
			s.cancel()
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
			s.breakOff(j.lost(s.Context(), "answer"))
			return s.brokenBy()
		}
	}
}

// breakOff ends the stream; its user gets err from RecvMsg.
func (s *clientStream) breakOff(err error) {
	s.mu.Lock()
	if s.broken == nil {
		s.broken = err
	}
	s.mu.Unlock()
	s.cancel()
}

func (s *clientStream) brokenBy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}
