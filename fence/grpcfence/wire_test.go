package grpcfence_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence/grpcfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestUnary_wire(t *testing.T) {
	fencetest.Wire{Missing: grpcfence.ErrMissing, Start: wire{}.start}.Run(t)
}

// A stream is like a call of an early server, also of an atomic one: TestStream_eachMessage.
func TestStream_wire(t *testing.T) {
	fencetest.Wire{Missing: grpcfence.ErrMissing, Start: wire{streams: true}.start, Early: true}.Run(t)
}

// wire is a server with a client that sends it tokens.
type wire struct {
	streams bool // the calls are streams, not unary calls
	server  *grpcfence.Server
	handle  func(context.Context) error
	client  testgrpc.TestServiceClient
}

func (w wire) method() string {
	if w.streams {
		return testgrpc.TestService_FullDuplexCall_FullMethodName
	}
	return testgrpc.TestService_UnaryCall_FullMethodName
}

func (w wire) start(t *testing.T, s fencetest.Server) fencetest.Client {
	t.Helper()
	opts := grpcfence.Options{Writes: func(method string) bool { return method == w.method() && !s.ReadOnly }}
	named := func(ctx context.Context, method string, req any) string {
		_, unary := req.(*testgrpc.SimpleRequest)
		if method != w.method() || unary == w.streams || w.streams && req != nil {
			return "another call"
		}
		return metadata.ValueFromIncomingContext(ctx, "resource")[0]
	}
	if !s.Atomic {
		opts.CheckRead = s.CheckRead
	}
	server, err := grpcfence.NewServer(named, s.Check, opts)
	if s.Atomic {
		server, err = grpcfence.NewAtomicServer(named, s.Guard, opts)
	}
	require.NoError(t, err)
	w.server, w.handle = server, s.Handle
	w.client = serve(t, server, &service{
		unary:  func(ctx context.Context, _ *testgrpc.SimpleRequest) error { return s.Handle(ctx) },
		stream: func(s testgrpc.TestService_FullDuplexCallServer) error { return w.handle(s.Context()) },
	})
	return w
}

func (w wire) Send(ctx context.Context, resource string, set fencetest.Set) error {
	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{
		grpcfence.MetadataKey: set.Write, grpcfence.ReadMetadataKey: set.Read, grpcfence.LockMetadataKey: set.Lock,
		"resource": {resource},
	})
	if !w.streams {
		_, err := w.client.UnaryCall(ctx, new(testgrpc.SimpleRequest))
		return outcome(err)
	}
	stream, err := w.client.FullDuplexCall(ctx)
	if err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return outcome(err)
}

func (w wire) ServeIn(server, client context.Context) error {
	invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		ctx = metadata.NewIncomingContext(server, md)
		if w.streams {
			return w.server.Stream(nil, serverStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: w.method()},
				func(_ any, s grpc.ServerStream) error { return w.handle(s.Context()) })
		}
		_, err := w.server.Unary(ctx, new(testgrpc.SimpleRequest), &grpc.UnaryServerInfo{FullMethod: w.method()},
			func(ctx context.Context, _ any) (any, error) { return nil, w.handle(ctx) })
		return err
	}
	err := grpcfence.UnaryClient(metadata.AppendToOutgoingContext(client, "resource", "orders"), "", nil, nil, nil, invoke)
	return outcome(err)
}

// serverStream is a stream without messages.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a grpc.ServerStream has one
}

func (s serverStream) Context() context.Context { return s.ctx }

func outcome(err error) error {
	st := status.Convert(err)
	if err == nil || len(st.Details()) > 0 {
		return err
	}
	return errors.Join(err, map[codes.Code]error{
		codes.Internal: fencetest.ErrNoResource, codes.InvalidArgument: fencetest.ErrLongResource,
		codes.Unavailable: fencetest.ErrUnchecked, codes.Canceled: fencetest.ErrUnchecked,
	}[st.Code()])
}

// orders names one resource for every call.
func orders(context.Context, string, any) string { return "orders" }

// service is gRPC's test service, with the handlers that a test gives it.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(ctx context.Context, in *testgrpc.SimpleRequest) error
	stream func(testgrpc.TestService_FullDuplexCallServer) error
}

func (s *service) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	if s.unary != nil {
		if err := s.unary(ctx, in); err != nil {
			return nil, err
		}
	}
	return &testgrpc.SimpleResponse{Username: "served"}, nil
}

func (s *service) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	return s.stream(stream)
}

// serve serves s on the loopback interface and returns a client with the interceptors.
func serve(t *testing.T, s *grpcfence.Server, impl *service) testgrpc.TestServiceClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.UnaryInterceptor(s.Unary), grpc.StreamInterceptor(s.Stream))
	testgrpc.RegisterTestServiceServer(server, impl)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // a test that sends nothing may stop it before it serves
			require.NoError(t, err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpcfence.UnaryClient), grpc.WithStreamInterceptor(grpcfence.StreamClient))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return testgrpc.NewTestServiceClient(conn)
}

// requireInfo checks a refusal's status and returns the metadata of its detail.
func requireInfo(t *testing.T, err error, code codes.Code, reason string) map[string]string {
	t.Helper()
	st, ok := status.FromError(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, st.Code(), "%v", err)
	require.Len(t, st.Details(), 1)
	info, ok := st.Details()[0].(*errdetails.ErrorInfo)
	require.True(t, ok)
	require.Equal(t, grpcfence.Domain, info.GetDomain())
	require.Equal(t, reason, info.GetReason())
	return info.GetMetadata()
}
