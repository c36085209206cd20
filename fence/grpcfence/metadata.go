package grpcfence

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

// MetadataKey is the key of a call's metadata that carries the token, in the decimal form that [fence.Token.String]
// writes. It is the header of httpfence in gRPC's lower case, so a gateway from HTTP to gRPC preserves the token.
const MetadataKey = "fencing-token"

// ReadMetadataKey is [MetadataKey] for the token of a read lock. A server that knows only writers finds no token in such a call
// and refuses it if its method writes. A call has one of the two.
const ReadMetadataKey = "fencing-read-token"

// LockMetadataKey is the key of the metadata that carries the name of the lock that the token belongs to, beside [MetadataKey] or
// [ReadMetadataKey]; see [fence.WithLock]. In the name, "%" and two upper-case hex digits stand for each byte but A-Z, a-z, 0-9
// and "-._~/", as in the header of httpfence. A token may come without it. A server that does not know it takes the token of any
// lock.
const LockMetadataKey = "fencing-lock"

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

// LockFromIncomingContext returns, at the server, the name of the lock in a call's metadata, or "" if there is none. The error
// matches [fence.ErrInvalidToken] if there are several values, or if the value is empty, is not written as [LockMetadataKey] says
// or is a name that [fence.CheckLock] refuses.
func LockFromIncomingContext(ctx context.Context) (string, error) {
	return wire.DecodeLock(metadata.ValueFromIncomingContext(ctx, LockMetadataKey))
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

// carried returns the token of a call, a writer's or a reader's, and the name of its lock.
func carried(ctx context.Context) (t wire.Token, err error) {
	if t.Lock, err = LockFromIncomingContext(ctx); err != nil {
		return wire.Token{}, err
	}
	writer := metadata.ValueFromIncomingContext(ctx, MetadataKey)
	reader := metadata.ValueFromIncomingContext(ctx, ReadMetadataKey)
	switch {
	case len(writer) > 0 && len(reader) > 0:
		err = fmt.Errorf("%w: metadata %s and %s are both set, want one", fence.ErrInvalidToken, MetadataKey, ReadMetadataKey)
	case len(writer) > 0:
		t.Write, err = parse(MetadataKey, writer)
	case len(reader) > 0:
		var read fence.Token
		read, err = parse(ReadMetadataKey, reader)
		t.Read = fence.ReadToken(read)
	case t.Lock != "": // no client sends that: something between has lost the token
		err = fmt.Errorf("%w: metadata %s is set and neither %s nor %s, want one",
			fence.ErrInvalidToken, LockMetadataKey, MetadataKey, ReadMetadataKey)
	}
	return t, err
}

// outgoing returns a context with the token of ctx and the name of its lock in its metadata. It keeps the caller's metadata.
func outgoing(ctx context.Context) (context.Context, error) {
	own, err := wire.FieldsOf(ctx)
	if err != nil {
		return nil, unsent(err)
	}
	if !own.HasToken() {
		return ctx, nil
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	var added []string
	for i, key := range keys {
		set := md.Get(key)
		switch {
		case !own.Allows(i, set):
			return nil, unsent(fmt.Errorf("%w: metadata %s is set to %q, the context carries %s",
				fence.ErrInvalidToken, key, set, own.Text(keys)))
		case len(set) == 0 && own[i] != "":
			added = append(added, key, own[i])
		}
	}
	return metadata.AppendToOutgoingContext(ctx, added...), nil
}

// unsent gives a status to the error for a call that is not sent.
func unsent(err error) error {
	return &refusal{status: status.New(codes.InvalidArgument, err.Error()), err: err}
}

// keys are those of [wire.Fields].
var keys = [...]string{MetadataKey, ReadMetadataKey, LockMetadataKey}
