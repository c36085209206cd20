package grpcfence_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
)

// BenchmarkUnary shows what the server's interceptor adds to a handler that does nothing, without a network.
func BenchmarkUnary(b *testing.B) {
	run := func(name, token string, wrap func(*fence.Guard) (grpc.UnaryServerInterceptor, error)) {
		b.Run(name, func(b *testing.B) {
			var g fence.Guard
			if err := g.Claim("orders", 54); err != nil {
				b.Fatal(err)
			}
			intercept, err := wrap(&g)
			if err != nil {
				b.Fatal(err)
			}
			ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs(grpcfence.MetadataKey, token))
			info := &grpc.UnaryServerInfo{FullMethod: "/orders.Orders/Sell"}
			handler := func(context.Context, any) (any, error) { return nil, nil }
			b.ReportAllocs()
			for b.Loop() {
				if _, err := intercept(ctx, nil, info, handler); (err != nil) != (token == "41") {
					b.Fatal(err)
				}
			}
		})
	}
	early := func(g *fence.Guard) (grpc.UnaryServerInterceptor, error) {
		s, err := grpcfence.NewServer(orders, grpcfence.GuardCheck(g), grpcfence.Options{})
		return s.Unary, err
	}
	run("without", "54", func(*fence.Guard) (grpc.UnaryServerInterceptor, error) {
		return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			return handle(ctx, req)
		}, nil
	})
	run("early", "54", early)
	run("atomic", "54", func(g *fence.Guard) (grpc.UnaryServerInterceptor, error) {
		s, err := grpcfence.NewAtomicServer(orders, g, grpcfence.Options{})
		return s.Unary, err
	})
	run("refused", "41", early)
}

// BenchmarkUnaryClient shows what the client's interceptor adds to a call that does nothing.
func BenchmarkUnaryClient(b *testing.B) {
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	ctx := fence.NewContext(b.Context(), 54)
	b.Run("without", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := invoke(ctx, "/orders.Orders/Sell", nil, nil, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("with", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := grpcfence.UnaryClient(ctx, "/orders.Orders/Sell", nil, nil, nil, invoke); err != nil {
				b.Fatal(err)
			}
		}
	})
}
