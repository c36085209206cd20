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

// ReadMetadataKey is [MetadataKey] for the token of a read lock. A server that knows only writers finds no token in such a call
// and refuses it if its method writes. A call has one of the two.
const ReadMetadataKey = "fencing-read-token"

// ErrMissing reports that a call of a method that writes has no token. It is a mistake of the caller and not a lost lock.
var ErrMissing = errors.New("grpcfence: no fencing token")

// FromIncomingContext returns, at the server, the token in a call's metadata. There must be exactly one value, and
// [fence.Parse] must accept it.
//
// The error matches [ErrMissing] if there is no value, and [fence.ErrInvalidToken] if there are several values or if the value
// is empty or malformed.
func FromIncomingContext(ctx context.Context) (fence.Token, error) {
	return parse(MetadataKey, metadata.ValueFromIncomingContext(ctx, MetadataKey))
}

// ReadFromIncomingContext is [FromIncomingContext] for [ReadMetadataKey].
func ReadFromIncomingContext(ctx context.Context) (fence.ReadToken, error) {
	t, err := parse(ReadMetadataKey, metadata.ValueFromIncomingContext(ctx, ReadMetadataKey))
	return fence.ReadToken(t), err
}

func parse(key string, values []string) (fence.Token, error) {
	switch len(values) {
	case 0:
		return 0, ErrMissing
	case 1:
		return fence.Parse(values[0])
	}
	return 0, fmt.Errorf("%w: metadata %s has %d values, want 1", fence.ErrInvalidToken, key, len(values))
}

// tokens returns the token of a call, a writer's or a reader's. Both are 0 if it has none.
func tokens(ctx context.Context) (t fence.Token, read fence.ReadToken, err error) {
	writer := metadata.ValueFromIncomingContext(ctx, MetadataKey)
	reader := metadata.ValueFromIncomingContext(ctx, ReadMetadataKey)
	switch {
	case len(writer) > 0 && len(reader) > 0:
		err = fmt.Errorf("%w: metadata %s and %s are both set, want one", fence.ErrInvalidToken, MetadataKey, ReadMetadataKey)
	case len(writer) > 0:
		t, err = parse(MetadataKey, writer)
	case len(reader) > 0:
		t, err = parse(ReadMetadataKey, reader)
		return 0, fence.ReadToken(t), err
	}
	return t, 0, err
}

// outgoing returns a context with the token of ctx in its metadata. It keeps the caller's metadata.
func outgoing(ctx context.Context) (context.Context, error) {
	carried, value := fromContext(ctx)
	if carried == "" {
		return ctx, nil
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	for _, key := range []string{MetadataKey, ReadMetadataKey} {
		set := md.Get(key)
		if len(set) > 0 && (key != carried || len(set) != 1 || set[0] != value) {
			err := fmt.Errorf("%w: metadata %s is set to %q, the context carries %s for %s",
				fence.ErrInvalidToken, key, set, value, carried)
			return nil, &refusal{status: status.New(codes.InvalidArgument, err.Error()), err: err}
		}
	}
	if len(md.Get(carried)) > 0 {
		return ctx, nil
	}
	return metadata.AppendToOutgoingContext(ctx, carried, value), nil
}

// fromContext returns the key for the token that ctx carries, and its value; "" if it carries none.
func fromContext(ctx context.Context) (key, value string) {
	if token, ok := fence.FromContext(ctx); ok {
		return MetadataKey, token.String()
	}
	if token, ok := fence.ReadFromContext(ctx); ok {
		return ReadMetadataKey, token.String()
	}
	return "", ""
}
