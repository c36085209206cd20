package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// echo answers each message with the token of the stream's context.
func echo(stream testgrpc.TestService_FullDuplexCallServer) error {
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		token, _ := fence.FromContext(stream.Context())
		err = stream.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: []byte(token.String())}})
		if err != nil {
			return err
		}
	}
}

// exchange sends one message and returns what comes back.
func exchange(t *testing.T, stream testgrpc.TestService_FullDuplexCallClient) (string, error) {
	t.Helper()
	if err := stream.Send(new(testgrpc.StreamingOutputCallRequest)); err != nil {
		require.ErrorIs(t, err, io.EOF, "Recv says why")
	}
	resp, err := stream.Recv()
	return string(resp.GetPayload().GetBody()), err
}

func open(ctx context.Context, t *testing.T, c testgrpc.TestServiceClient) testgrpc.TestService_FullDuplexCallClient {
	t.Helper()
	stream, err := c.FullDuplexCall(ctx)
	require.NoError(t, err)
	return stream
}

// The token and its lock are checked when a stream starts, since a handler may write before it has received anything,
// and with EachMessage also with each message. A reader's stream is checked like a writer's. No newer token waits for a
// stream of an atomic server.
func TestStream_eachMessage(t *testing.T) {
	for _, reads := range []bool{false, true} {
		for _, moved := range []bool{false, true} {
			t.Run(fmt.Sprintf("reads %t, moved %t", reads, moved), func(t *testing.T) {
				var g fence.Guard
				var started atomic.Int64
				start := func(each bool, stream func(testgrpc.TestService_FullDuplexCallServer) error) testgrpc.TestServiceClient {
					s, err := grpcfence.NewAtomicServer(orders, &g, grpcfence.Options{
						Writes: func(string) bool { return !reads }, EachMessage: each,
					})
					require.NoError(t, err)
					return serve(t, s, &service{stream: stream})
				}
				atStart := start(false, echo)
				fenced := start(true, func(stream testgrpc.TestService_FullDuplexCallServer) error {
					if started.Add(1) > 1 {
						return nil
					}
					return echo(stream)
				})
				ctx, answer := fencetest.Verb{Reads: reads}.Context(t.Context(), 54, "ärger"), "54"
				if reads {
					answer = "0" // no token to write with
				}
				stream, unchecked := open(ctx, t, fenced), open(ctx, t, atStart)
				for range 2 {
					for _, stream := range []testgrpc.TestService_FullDuplexCallClient{stream, unchecked} {
						got, err := exchange(t, stream)
						require.NoError(t, err)
						require.Equal(t, answer, got)
					}
				}
				require.ErrorIs(t, g.Claim("orders", 41), fence.ErrStale)
				require.Equal(t, map[string]string{"orders": "ärger"}, g.Locks())

				want, reason := fence.ErrStale, grpcfence.ReasonStale
				if moved {
					want, reason = fence.ErrOtherLock, grpcfence.ReasonOtherLock
					require.NoError(t, g.Move("orders", 54, "report"))
				} else {
					require.NoError(t, g.Claim("orders", 60))
				}
				_, err := exchange(t, unchecked)
				require.NoError(t, err)
				require.NoError(t, unchecked.CloseSend())
				_, err = unchecked.Recv()
				require.Equal(t, io.EOF, err)
				for _, stream := range []testgrpc.TestService_FullDuplexCallClient{stream, open(ctx, t, fenced), open(ctx, t, atStart)} {
					_, err := exchange(t, stream)
					require.ErrorIs(t, err, want)
					md := requireInfo(t, err, codes.FailedPrecondition, reason)
					require.Equal(t, reads, md["read"] == "true")
				}
				if !reads {
					_, err := exchange(t, open(fence.NewReadContext(t.Context(), 60), t, atStart))
					require.ErrorIs(t, err, grpcfence.ErrMissing, "a reader does not write")
				}
				require.EqualValues(t, 1, started.Load(), "the handler has run")
			})
		}
	}
}

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
	g, none := new(fence.Guard), grpcfence.Options{}
	of := func(_ *grpcfence.Server, err error) error { return err }
	for want, err := range map[string]error{
		"resource is nil, want a function":  of(grpcfence.NewAtomicServer(nil, g, none)),
		"check is nil, want a function":     of(grpcfence.NewServer(orders, nil, none)),
		"guard is nil, want a *fence.Guard": of(grpcfence.NewAtomicServer(orders, nil, none)),
		"Options.CheckRead is set, want nil: NewAtomicServer checks with its guard": of(
			grpcfence.NewAtomicServer(orders, g, grpcfence.Options{CheckRead: g.CheckReadContext})),
	} {
		require.EqualError(t, err, "grpcfence: "+want)
	}
}

func TestServer_zero(t *testing.T) {
	for _, zero := range []*grpcfence.Server{nil, {}} {
		_, err := zero.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, nil)
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorContains(t, err, "Server is nil or zero, want one created by NewServer or NewAtomicServer")
	}
}
