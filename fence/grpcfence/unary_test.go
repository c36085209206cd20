package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// gRPC's keys are in lower case.
func TestMetadataKey_isTheHeaderOfHTTP(t *testing.T) {
	require.Equal(t, grpcfence.MetadataKey, strings.ToLower(httpfence.Header))
	require.Equal(t, grpcfence.ReadMetadataKey, strings.ToLower(httpfence.ReadHeader))
	require.Equal(t, grpcfence.LockMetadataKey, strings.ToLower(httpfence.LockHeader))
}

// A check that fails refuses the call. The client learns the reason only if the error has a status.
func TestUnary_failedCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{errors.New("dial 10.0.0.7: refused"), codes.Unavailable},
		{fmt.Errorf("at 10.0.0.7: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("at 10.0.0.7: %w", context.Canceled), codes.Canceled},
		{status.Error(codes.ResourceExhausted, "try later"), codes.ResourceExhausted},
		{fmt.Errorf("at 10.0.0.7: %w", fence.ErrStale), codes.FailedPrecondition},
	} {
		check := func(context.Context, string, fence.Token) error { return c.err }
		s, err := grpcfence.NewServer(orders, check, grpcfence.Options{})
		require.NoError(t, err)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.MetadataKey, "54"))
		_, err = s.Unary(ctx, nil, new(grpc.UnaryServerInfo), nil) // the handler would panic
		require.ErrorIs(t, err, c.err, "interceptors further out see the cause")
		require.Equal(t, c.code, status.Code(err))
		require.NotContains(t, status.Convert(err).Message(), "10.0.0.7")
	}
}

func TestNewServer_namesWhatIsNil(t *testing.T) {
	_, err := grpcfence.NewServer(nil, new(fence.Guard).CheckContext, grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: resource is nil, want a function")
	_, err = grpcfence.NewServer(orders, nil, grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: check is nil, want a function")
	_, err = grpcfence.NewAtomicServer(nil, new(fence.Guard), grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: resource is nil, want a function")
	_, err = grpcfence.NewAtomicServer(orders, nil, grpcfence.Options{})
	require.EqualError(t, err, "grpcfence: guard is nil, want a *fence.Guard")
	g := new(fence.Guard)
	_, err = grpcfence.NewAtomicServer(orders, g, grpcfence.Options{CheckRead: g.CheckReadContext})
	require.EqualError(t, err, "grpcfence: Options.CheckRead is set, want nil: NewAtomicServer checks with its guard")
}

func TestServer_zero(t *testing.T) {
	for _, zero := range []*grpcfence.Server{nil, {}} {
		_, err := zero.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, nil)
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorContains(t, err, "Server is nil or zero, want one created by NewServer or NewAtomicServer")
	}
}
