package grpcfence

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
)

// MetadataKey is the key of a call's metadata that carries the token, in the decimal form that [fence.Token.String]
// writes. It is the header of httpfence in gRPC's lower case, so a gateway from HTTP to gRPC preserves the token.
const MetadataKey = "fencing-token"

// ErrMissing reports that a call of a method that writes has no token. It is a mistake of the caller and not a lost lock.
var ErrMissing = errors.New("grpcfence: no fencing token")

// FromIncomingContext returns, at the server, the token in a call's metadata. There must be exactly one value, and
// [fence.Parse] must accept it.
//
// The error matches [ErrMissing] if there is no value, and [fence.ErrInvalidToken] if there are several values or if the value
// is empty or malformed.
func FromIncomingContext(ctx context.Context) (fence.Token, error) {
	values := metadata.ValueFromIncomingContext(ctx, MetadataKey)
	switch len(values) {
	case 0:
		return 0, ErrMissing
	case 1:
		return fence.Parse(values[0])
	}
	return 0, fmt.Errorf("%w: metadata %s has %d values, want 1", fence.ErrInvalidToken, MetadataKey, len(values))
}

// outgoing returns a context with the token of ctx in its metadata. It keeps the caller's metadata.
func outgoing(ctx context.Context) (context.Context, error) {
	token, ok := fence.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	set := md.Get(MetadataKey)
	if len(set) == 0 {
		return metadata.AppendToOutgoingContext(ctx, MetadataKey, token.String()), nil
	}
	if len(set) != 1 || set[0] != token.String() {
		err := fmt.Errorf("%w: metadata %s is set to %q, the context carries %d",
			fence.ErrInvalidToken, MetadataKey, set, int64(token))
		return nil, &refusal{status: status.New(codes.InvalidArgument, err.Error()), err: err}
	}
	return ctx, nil
}
