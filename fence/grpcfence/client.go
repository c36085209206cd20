package grpcfence

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence/internal/wire"
)

// MetadataKey is the key of a call's metadata that carries the token, in the decimal form that [fence.Token.String]
// writes. It is the header of httpfence in gRPC's lower case. A gateway from HTTP to gRPC must pass on the three headers
// by these names; grpc-gateway drops them unless runtime.WithIncomingHeaderMatcher names them.
const MetadataKey = "fencing-token"

// ReadMetadataKey is [MetadataKey] for the token of a read lock. A server that knows only writers finds no token in
// such a call and refuses it if its method writes. A call has one of the two.
const ReadMetadataKey = "fencing-read-token"

// LockMetadataKey is the key of the metadata that carries the name of the lock that the token belongs to, beside
// [MetadataKey] or [ReadMetadataKey]; see [fence.WithLock]. In the name, "%" and two upper-case hex digits stand for
// each byte except A-Z, a-z, 0-9 and "-._~/", as in the header of httpfence. A token may come without it. A server that
// does not know it takes the token of any lock.
const LockMetadataKey = "fencing-lock"

// ErrMissing reports that a call of a method that writes has no token. It is a mistake of the caller and not a lost
// lock.
var ErrMissing = errors.New("grpcfence: no fencing token")

// outgoing returns a context with the token of ctx and the name of its lock in its metadata. It keeps the caller's
// metadata.
func outgoing(ctx context.Context) (context.Context, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	add, err := wire.Outgoing(ctx, "metadata", keys, md.Get)
	if err != nil {
		return nil, unsent(err)
	}
	if add == (wire.Fields{}) { // such as a call without a token, which has no metadata of its own
		return ctx, nil
	}
	var pairs []string
	for i, key := range keys {
		if add[i] != "" {
			pairs = append(pairs, key, add[i])
		}
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...), nil
}

// unsent gives a status to the error for a call that is not sent.
func unsent(err error) error {
	return &refusal{status: status.New(codes.InvalidArgument, err.Error()), err: err}
}

// keys are those of [wire.Fields].
var keys = [...]string{MetadataKey, ReadMetadataKey, LockMetadataKey}

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
