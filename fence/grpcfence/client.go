package grpcfence

import (
	"context"

	"google.golang.org/grpc"
)

var (
	_ grpc.UnaryClientInterceptor  = UnaryClient
	_ grpc.StreamClientInterceptor = StreamClient
)

// UnaryClient is an interceptor that sends the token of each call's context in the metadata, with the name of its lock,
// and converts refusals as [ReadError] does. Without a token in the context it sends the call unchanged.
//
// The token of a lock goes into fencing-token, that of a read lock into fencing-read-token, and the name of the lock,
// if the context has one, into fencing-lock; see [fence.LockFromContext]. The interceptor also sends a value that the
// caller has set for one of these keys. If the context carries a token, it must be the value that the interceptor would
// send: otherwise the call is not sent, and the error has the status INVALID_ARGUMENT and matches
// [fence.ErrInvalidToken]. The same happens if [fence.CheckLock] refuses the name in the context.
//
// A token is meaningful only at the resources of its lock. Use the interceptor only for connections to them: elsewhere
// the token would raise the marks of another series of tokens.
func UnaryClient(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	ctx, err := outgoing(ctx)
	if err != nil {
		return err
	}
	return ReadError(invoke(ctx, method, req, reply, cc, opts...))
}

// StreamClient is [UnaryClient] for streams. A stream keeps the token and the name of the context that it was opened
// with.
func StreamClient(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, err := outgoing(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, ReadError(err)
	}
	return &clientStream{stream}, nil
}

// clientStream converts the refusals of a stream. Only RecvMsg returns them; SendMsg returns io.EOF.
type clientStream struct{ grpc.ClientStream }

// RecvMsg receives a message and converts a refusal.
func (s *clientStream) RecvMsg(m any) error { return ReadError(s.ClientStream.RecvMsg(m)) }
