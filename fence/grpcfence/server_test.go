package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
	"github.com/leasefence/leasefence/fence/httpfence"
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

// A client adds nothing to a call without a token, not even empty metadata, which other interceptors could see.
func TestUnaryClient_leavesACallWithoutATokenAlone(t *testing.T) {
	require.NoError(t, grpcfence.UnaryClient(t.Context(), "", nil, nil, nil,
		func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			require.Equal(t, t.Context(), ctx)
			return nil
		}))
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
