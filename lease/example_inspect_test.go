//nolint:errcheck // deferred closing in examples: what could not be closed expires by itself
package lease_test

import (
	"context"
	"fmt"
	"log"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// Who holds a lock, and how to free it without taking it away from running work.
func ExampleRelease() {
	ctx, client, session := startUp(lease.Options{Owner: "worker-7"})
	defer session.Close(ctx)

	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- session.Do(ctx, "report", func(ctx context.Context, _ fence.Token) error {
			close(begun)
			<-ctx.Done()
			fmt.Println("stops:", context.Cause(ctx))
			return nil
		})
	}()
	<-begun

	// Anywhere else, with nothing but a client.
	queue, err := lease.Inspect(ctx, client, "report")
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range queue.Holders {
		fmt.Println(holder.Class, holder.Owner)
		err = lease.Release(ctx, client, "report", lease.ReleaseOptions{Revision: holder.Revision})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(<-ended)
	// Output:
	// exclusive worker-7
	// stops: lease: asked to release
	// lease: lock "report": lease: asked to release
}

func ExampleList() {
	ctx, client, session := startUp(lease.Options{Prefix: "jobs/"})
	defer session.Close(ctx)
	for _, name := range []string{"report", "backup"} {
		if _, err := session.Lock(ctx, name); err != nil {
			log.Fatal(err)
		}
	}

	for queue, err := range lease.List(ctx, client, "jobs/") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(queue.Name, len(queue.Holders), len(queue.Waiters))
	}
	// Output:
	// jobs/backup 1 0
	// jobs/report 1 0
}

func ExampleWatch() {
	ctx, client, session := startUp(lease.Options{Owner: "worker-7"})
	defer session.Close(ctx)

	for queue, err := range lease.Watch(ctx, client, "report") {
		if err != nil {
			log.Fatal(err)
		}
		if len(queue.Holders) > 0 {
			fmt.Println("held by", queue.Holders[0].Owner)
			break
		}
		fmt.Println("free")
		if _, err := session.Lock(ctx, "report"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// free
	// held by worker-7
}
