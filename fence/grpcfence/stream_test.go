package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
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
// stream, also of an atomic server.
func TestStream_eachMessage(t *testing.T) {
	for _, kind := range kinds {
		for _, reads := range []bool{false, true} {
			for _, moved := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, reads %t, moved %t", kind, reads, moved), func(t *testing.T) {
					var g fence.Guard
					var started atomic.Int64
					writes := func(string) bool { return !reads }
					atStart := serve(t, newServer(t, kind, &g, grpcfence.Options{Writes: writes}), &service{stream: echo})
					opts := grpcfence.Options{Writes: writes, EachMessage: true}
					fenced := serve(t, newServer(t, kind, &g, opts), &service{
						stream: func(stream testgrpc.TestService_FullDuplexCallServer) error {
							if started.Add(1) > 1 {
								return nil
							}
							return echo(stream)
						},
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
}
