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

func TestStream_checksAtTheStartAndCarriesTheToken(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var g fence.Guard
			require.NoError(t, g.Claim("orders", 54))
			fenced := serve(t, newServer(t, kind, &g, grpcfence.Options{}), &service{stream: echo})

			stream := open(fence.NewContext(t.Context(), 54), t, fenced)
			for range 2 {
				got, err := exchange(t, stream)
				require.NoError(t, err)
				require.Equal(t, "54", got)
			}
			require.NoError(t, g.Claim("orders", 60), "no newer token waits for a stream")
			_, err := exchange(t, stream)
			require.NoError(t, err, "checked once")
			require.NoError(t, stream.CloseSend())
			_, err = stream.Recv()
			require.Equal(t, io.EOF, err)

			_, err = exchange(t, open(fence.NewContext(t.Context(), 54), t, fenced))
			require.ErrorIs(t, err, fence.ErrStale)
			md := requireInfo(t, err, codes.FailedPrecondition, grpcfence.ReasonStale)
			require.Equal(t, map[string]string{"resource": "orders", "token": "54", "highest": "60"}, md)
			_, err = exchange(t, open(t.Context(), t, fenced))
			require.ErrorIs(t, err, grpcfence.ErrMissing)
			_, err = exchange(t, open(fence.NewReadContext(t.Context(), 60), t, fenced))
			require.ErrorIs(t, err, grpcfence.ErrMissing, "a reader does not write")
			_, err = exchange(t, open(with(t, "60", "60"), t, fenced))
			requireInfo(t, err, codes.InvalidArgument, grpcfence.ReasonInvalid)
		})
	}
}

// With EachMessage the token is checked with each message, and at the start too: a handler may write before it has
// received anything. A reader's stream is checked like a writer's, and no writer waits for it.
func TestStream_eachMessage(t *testing.T) {
	for _, kind := range kinds {
		for _, reads := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reads %t", kind, reads), func(t *testing.T) {
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
				ctx, want := fencetest.Verb{Reads: reads}.Context(t.Context(), 54), "54"
				if reads {
					want = "0" // no token to write with
				}
				stream := open(ctx, t, fenced)
				for range 2 {
					got, err := exchange(t, stream)
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
				require.ErrorIs(t, g.Claim("orders", 41), fence.ErrStale)
				require.NoError(t, g.Claim("orders", 60))
				for _, stream := range []testgrpc.TestService_FullDuplexCallClient{stream, open(ctx, t, fenced)} {
					_, err := exchange(t, stream)
					require.ErrorIs(t, err, fence.ErrStale)
					md := requireInfo(t, err, codes.FailedPrecondition, grpcfence.ReasonStale)
					require.Equal(t, reads, md["read"] == "true")
				}
				require.EqualValues(t, 1, started.Load(), "the handler has run")
				require.Equal(t, map[string]fence.Token{"orders": 60}, g.Marks())
			})
		}
	}
}

// of returns the context of a lock's holder.
func of(t *testing.T, token fence.Token, lock string) context.Context {
	t.Helper()
	return fence.WithLock(fence.NewContext(t.Context(), token), lock)
}

// The name of the lock reaches the guard when a stream starts and with each message, and the refusal reaches the
// client.
func TestStream_locks(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var g fence.Guard
			fenced := serve(t, newServer(t, kind, &g, grpcfence.Options{EachMessage: true}), &service{stream: echo})
			stream := open(of(t, 54, "ärger"), t, fenced)
			_, err := exchange(t, stream)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"orders": "ärger"}, g.Locks())

			_, err = exchange(t, open(of(t, 60, "report"), t, fenced))
			require.ErrorIs(t, err, fence.ErrOtherLock)
			md := requireInfo(t, err, codes.FailedPrecondition, grpcfence.ReasonOtherLock)
			require.Equal(t, map[string]string{"resource": "orders", "token": "60", "lock": "report", "follows": "ärger"}, md)
			_, err = exchange(t, open(with(t, "60"), t, fenced))
			require.ErrorIs(t, err, fence.ErrOtherLock, "without a name")
			_, err = fenced.FullDuplexCall(of(t, 60, "\xff"))
			require.ErrorIs(t, err, fence.ErrInvalidToken, "nothing is sent")

			opts := grpcfence.Options{Writes: func(string) bool { return false }, EachMessage: true}
			readers := serve(t, newServer(t, kind, &g, opts), &service{stream: echo})
			reads := open(fence.WithLock(fence.NewReadContext(t.Context(), 60), "ärger"), t, readers)
			_, err = exchange(t, reads)
			require.NoError(t, err)
			require.Equal(t, map[string]fence.ReadToken{"orders": 60}, g.ReadMarks())
			_, err = exchange(t, open(fence.WithLock(fence.NewReadContext(t.Context(), 60), "report"), t, readers))
			require.ErrorIs(t, err, fence.ErrOtherLock)

			require.NoError(t, g.Move("orders", 60, "report"))
			for _, moved := range []testgrpc.TestService_FullDuplexCallClient{reads, open(of(t, 60, "ärger"), t, fenced)} {
				_, err = exchange(t, moved)
				require.ErrorIs(t, err, fence.ErrOtherLock, "with the next message")
			}
			_, err = exchange(t, stream)
			require.ErrorIs(t, err, fence.ErrOtherLock, "whatever the numbers are")
		})
	}
}

// For a stream the resource function gets no request, and the store's refusal gets its status.
func TestStream_resourceAndTheStoresRefusal(t *testing.T) {
	var g fence.Guard
	var asked []any
	resource := func(_ context.Context, method string, req any) string {
		asked = append(asked, req)
		return method
	}
	s, err := grpcfence.NewAtomicServer(resource, &g, grpcfence.Options{})
	require.NoError(t, err)
	fenced := serve(t, s, &service{stream: func(stream testgrpc.TestService_FullDuplexCallServer) error {
		token, _ := fence.FromContext(stream.Context())
		return &fence.StaleError{Resource: "row", Token: token, Highest: 60}
	}})
	_, err = exchange(t, open(fence.NewContext(t.Context(), 54), t, fenced))
	var stale *fence.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, fence.StaleError{Resource: "row", Token: 54, Highest: 60}, *stale)
	require.Equal(t, []any{nil}, asked)
	require.Equal(t, map[string]fence.Token{testgrpc.TestService_FullDuplexCall_FullMethodName: 54}, g.Marks())
}
