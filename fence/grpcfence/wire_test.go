package grpcfence_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestUnary_wire(t *testing.T) {
	fencetest.Wire{Missing: grpcfence.ErrMissing, Start: start}.Run(t)
}

// wire is a server with a client that sends it tokens.
type wire struct {
	t      *testing.T
	server *grpcfence.Server
	handle func(context.Context) error
	client testgrpc.TestServiceClient
}

func start(t *testing.T, s fencetest.Server) fencetest.Client {
	t.Helper()
	const unary = testgrpc.TestService_UnaryCall_FullMethodName
	opts := grpcfence.Options{Writes: func(method string) bool { return method == unary && !s.ReadOnly }}
	named := func(_ context.Context, method string, req any) string {
		if method != unary {
			return "another method"
		}
		return string(req.(*testgrpc.SimpleRequest).GetPayload().GetBody())
	}
	if !s.Atomic {
		opts.CheckRead = s.CheckRead
	}
	if s.Check == nil {
		s.Check = s.Guard.CheckContext
	}
	if s.Handle == nil {
		s.Handle = func(context.Context) error { return nil }
	}
	server, err := grpcfence.NewServer(named, s.Check, opts)
	if s.Atomic {
		server, err = grpcfence.NewAtomicServer(named, s.Guard, opts)
	}
	require.NoError(t, err)
	client := serve(t, server, &service{
		unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error { return s.Handle(ctx) },
	})
	return &wire{t, server, s.Handle, client}
}

func request(resource string) *testgrpc.SimpleRequest {
	return &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte(resource)}}
}

func (w *wire) Send(ctx context.Context, resource string, set fencetest.Set) (fencetest.Outcome, error) {
	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{
		grpcfence.MetadataKey: set.Write, grpcfence.ReadMetadataKey: set.Read, grpcfence.LockMetadataKey: set.Lock,
	})
	_, err := w.client.UnaryCall(ctx, request(resource))
	return w.outcome(err), err
}

func (w *wire) ServeIn(server, client context.Context) (fencetest.Outcome, error) {
	md := metadata.MD{}
	if token, ok := fence.FromContext(client); ok {
		md.Set(grpcfence.MetadataKey, token.String())
	}
	if token, ok := fence.ReadFromContext(client); ok {
		md.Set(grpcfence.ReadMetadataKey, token.String())
	}
	if lock, ok := fence.LockFromContext(client); ok {
		md.Set(grpcfence.LockMetadataKey, lock)
	}
	ctx := metadata.NewIncomingContext(server, md)
	info := &grpc.UnaryServerInfo{FullMethod: testgrpc.TestService_UnaryCall_FullMethodName}
	_, err := w.server.Unary(ctx, request("orders"), info,
		func(ctx context.Context, _ any) (any, error) { return nil, w.handle(ctx) })
	return w.outcome(err), err
}

func (w *wire) outcome(err error) fencetest.Outcome {
	st := status.Convert(err)
	if len(st.Details()) > 0 {
		for outcome, want := range map[fencetest.Outcome]struct {
			code   codes.Code
			reason string
		}{
			fencetest.Stale:     {codes.FailedPrecondition, grpcfence.ReasonStale},
			fencetest.OtherLock: {codes.FailedPrecondition, grpcfence.ReasonOtherLock},
			fencetest.Missing:   {codes.FailedPrecondition, grpcfence.ReasonMissing},
			fencetest.Invalid:   {codes.InvalidArgument, grpcfence.ReasonInvalid},
		} {
			if code, reason, _ := refusal(w.t, err); code == want.code && reason == want.reason {
				return outcome
			}
		}
		return -1
	}
	outcome, known := map[codes.Code]fencetest.Outcome{
		codes.OK: fencetest.Served, codes.Internal: fencetest.NoResource, codes.InvalidArgument: fencetest.LongResource,
		codes.Unavailable: fencetest.Unchecked, codes.Canceled: fencetest.Ended,
	}[st.Code()]
	if !known {
		return -1
	}
	return outcome
}
