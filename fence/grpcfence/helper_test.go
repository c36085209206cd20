package grpcfence_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
)

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

// kinds of servers, which refuse the same calls.
var kinds = []string{"early", "atomic"}

func newServer(t *testing.T, kind string, g *fence.Guard, opts grpcfence.Options) *grpcfence.Server {
	t.Helper()
	s, err := grpcfence.NewAtomicServer(orders, g, opts)
	if kind == "early" {
		opts.CheckRead = g.CheckReadContext
		s, err = grpcfence.NewServer(orders, g.CheckContext, opts)
	}
	require.NoError(t, err)
	return s
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
