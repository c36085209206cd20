package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
)

// stock is a service that owns its stock.
type stock struct {
	testgrpc.UnimplementedTestServiceServer
	left int
}

// EmptyCall claims: the interceptor has raised the mark already.
func (s *stock) EmptyCall(context.Context, *testgrpc.Empty) (*testgrpc.Empty, error) {
	return new(testgrpc.Empty), nil
}

// UnaryCall sells.
func (s *stock) UnaryCall(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	s.left--
	return new(testgrpc.SimpleResponse), nil
}

// A server that owns its stock, and two holders. The first is paused for longer than its lease, and the server refuses
// the request that it sends when it wakes up.
func Example() {
	var guard fence.Guard
	fenced, err := grpcfence.NewAtomicServer(
		func(context.Context, string, any) string { return "stock" }, &guard,
		grpcfence.Options{Writes: func(method string) bool { return method != healthgrpc.Health_Check_FullMethodName }},
	)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(fenced.Unary), grpc.ChainStreamInterceptor(fenced.Stream))
	owner := &stock{left: 10}
	testgrpc.RegisterTestServiceServer(server, owner)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpcfence.UnaryClient),
		grpc.WithChainStreamInterceptor(grpcfence.StreamClient),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := testgrpc.NewTestServiceClient(conn)
	sell := func(ctx context.Context) error {
		_, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest))
		return err
	}

	paused := fence.NewContext(context.Background(), 41) // a lock's context carries its token
	successor := fence.NewContext(context.Background(), 54)
	fmt.Println("first:", sell(paused))
	_, err = client.EmptyCall(successor, new(testgrpc.Empty)) // claims
	fmt.Println("successor:", err)
	late := sell(paused)
	fmt.Println("first, late:", status.Code(late), status.Convert(late).Message())
	fmt.Println("stop this tenure:", errors.Is(late, fence.ErrStale))
	fmt.Println("without a token:", status.Convert(sell(context.Background())).Message())
	fmt.Println("stock:", owner.left)
	// Output:
	// first: <nil>
	// successor: <nil>
	// first, late: FailedPrecondition fence: stale token 41 for "stock": highest seen is 54
	// stop this tenure: true
	// without a token: grpcfence: no fencing token: want one value of fencing-token
	// stock: 9
}

// The store decides, and Error gives its refusal a status. The interceptors of a Server do this with a handler's error.
func ExampleError() {
	stored := &fence.StaleError{Resource: "orders", Token: 41, Highest: 54}
	err := grpcfence.Error(fmt.Errorf("update orders: %w", stored))

	st, _ := status.FromError(err)
	fmt.Println(st.Code(), st.Message())
	fmt.Println(errors.Is(err, fence.ErrStale))

	stale, ok := errors.AsType[*fence.StaleError](grpcfence.ReadError(st.Err())) // at the client
	fmt.Println(ok, stale.Resource, stale.Token, stale.Highest)
	// Output:
	// FailedPrecondition fence: stale token 41 for "orders": highest seen is 54
	// true
	// true orders 41 54
}
