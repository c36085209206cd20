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
// writes. It is the header of httpfence in gRPC's lower case, so a call that is carried over HTTP keeps its token.
const MetadataKey = "fencing-token"

// ErrMissing says that a call that needs a token came without one. It is the caller's mistake, not a lost lock.
var ErrMissing = errors.New("grpcfence: no fencing token")

// FromIncomingContext returns the token of a call's metadata, at the server. There must be exactly one value, and
// [fence.Parse] must accept it.
//
// The error matches [ErrMissing] if there is no value, and [fence.ErrInvalidToken] if there are several, or one that
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

// outgoing returns a context whose metadata carries the token of ctx. Metadata that the caller has set stays.
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
