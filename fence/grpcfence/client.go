package grpcfence

import (
	"context"

	"google.golang.org/grpc"
)

var (
	_ grpc.UnaryClientInterceptor  = UnaryClient
	_ grpc.StreamClientInterceptor = StreamClient
)

// UnaryClient is an interceptor that sends the token of each call's context in the metadata, and turns a refusal
// into an error as [ReadError] does. Without a token in the context the call is sent as it is.
//
// Metadata fencing-token that the caller has set is sent as it is. If it differs from the token of the context, one
// of the two is a mistake: the call is not sent, and the error is INVALID_ARGUMENT and matches
// [fence.ErrInvalidToken].
//
// A token means something only at the resources of its lock: give the interceptor to the connections that lead there
// and to no others. Anywhere else a token would raise the marks of another series.
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

// StreamClient is [UnaryClient] for streams. The token is that of the context which the stream was opened with,
// for as long as the stream lasts.
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

// clientStream reads the refusals of a stream. SendMsg has none: it returns io.EOF, and RecvMsg says why.
type clientStream struct{ grpc.ClientStream }

// RecvMsg is that of the stream, with its refusals read.
func (s *clientStream) RecvMsg(m any) error { return ReadError(s.ClientStream.RecvMsg(m)) }
