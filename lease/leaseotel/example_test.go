//nolint:errcheck // deferred closing in examples
package leaseotel_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leaseotel"
)

// The span of a late write has links to both holds: of the refused token and of the newer one.
func Example() {
	client := fakeetcd.New().Client(context.Background()) // clientv3.New(clientv3.Config{Endpoints: …})
	defer client.Close()
	ctx := context.Background()

	backend := tracetest.NewInMemoryExporter() // otlptracegrpc.New(…)
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(backend))
	telemetry, err := leaseotel.New(leaseotel.Options{TracerProvider: tracers}) // metrics: otel.SetMeterProvider
	if err != nil {
		log.Fatal(err)
	}
	resources, err := leaseotel.NewResources(leaseotel.ResourceOptions{})
	if err != nil {
		log.Fatal(err)
	}
	session, err := lease.NewSession(ctx, client, lease.Options{Hooks: telemetry.Hooks()})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	orders := fence.Guard{Hooks: resources.Hooks()} // at the resource
	write := func(ctx context.Context, token fence.Token) error {
		ctx, span := tracers.Tracer("orders").Start(ctx, "write")
		defer span.End()
		return orders.CheckContext(ctx, "orders", token)
	}

	var paused fence.Token
	for range 2 {
		err = session.Do(ctx, "orders", func(ctx context.Context, token fence.Token) error {
			paused = cmp.Or(paused, token)
			return write(ctx, token)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	late := fence.WithLock(fence.NewContext(ctx, paused), "orders") // as HTTP or gRPC middleware makes it
	fmt.Println("stale:", errors.Is(write(late, paused), fence.ErrStale))

	spans := backend.GetSpans()
	refused := spans[len(spans)-1]
	for _, s := range spans {
		fmt.Print(s.Name)
		for _, l := range s.Links {
			for i, of := range refused.Links {
				if l.SpanContext.Equal(of.SpanContext) {
					fmt.Printf(", link %d", i+1)
				}
			}
		}
		fmt.Println()
	}
	// Output:
	// stale: true
	// acquire lock
	// write
	// hold lock, link 1
	// acquire lock
	// write
	// hold lock, link 2
	// write, link 1, link 2
}
