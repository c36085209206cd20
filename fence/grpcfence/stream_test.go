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

// A stream is checked when it starts. No newer token waits for it.
func TestStream_checksAtTheStart(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var g fence.Guard
			fenced := serve(t, newServer(t, kind, &g, grpcfence.Options{}), &service{stream: echo})
			stream := open(fence.NewContext(t.Context(), 54), t, fenced)
			for range 2 {
				got, err := exchange(t, stream)
				require.NoError(t, err)
				require.Equal(t, "54", got)
				require.NoError(t, g.Claim("orders", 60))
			}
			require.NoError(t, stream.CloseSend())
			_, err := stream.Recv()
			require.Equal(t, io.EOF, err)

			_, err = exchange(t, open(fence.NewContext(t.Context(), 54), t, fenced))
			require.ErrorIs(t, err, fence.ErrStale)
			_, err = exchange(t, open(fence.NewReadContext(t.Context(), 60), t, fenced))
			require.ErrorIs(t, err, grpcfence.ErrMissing, "a reader does not write")
		})
	}
}

// With EachMessage the token and its lock are checked with each message, and at the start too: a handler may write before
// it has received anything. A reader's stream is checked like a writer's, and no writer waits for it.
func TestStream_eachMessage(t *testing.T) {
	for _, kind := range kinds {
		for _, reads := range []bool{false, true} {
			for _, moved := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, reads %t, moved %t", kind, reads, moved), func(t *testing.T) {
					var g fence.Guard
					var started atomic.Int64
					opts := grpcfence.Options{Writes: func(string) bool { return !reads }, EachMessage: true}
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
					stream := open(ctx, t, fenced)
					for range 2 {
						got, err := exchange(t, stream)
						require.NoError(t, err)
						require.Equal(t, answer, got)
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
					for _, stream := range []testgrpc.TestService_FullDuplexCallClient{stream, open(ctx, t, fenced)} {
						_, err := exchange(t, stream)
						require.ErrorIs(t, err, want)
						md := requireInfo(t, err, codes.FailedPrecondition, reason)
						require.Equal(t, reads, md["read"] == "true")
					}
					require.EqualValues(t, 1, started.Load(), "the handler has run")
				})
			}
		}
	}
}
