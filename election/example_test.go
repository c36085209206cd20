//nolint:errcheck // deferred closing in examples
package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// connect stands for clientv3.New in the examples: it returns a client of an etcd in memory.
func connect() *clientv3.Client {
	return fakeetcd.New().Client(context.Background())
}

// A service that leads for as long as it runs, and leads again after a loss: here an operator deletes its key once.
func ExampleRun() {
	client := connect() // clientv3.New(clientv3.Config{Endpoints: …})
	defer client.Close()
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext in a program
	session, err := lease.NewSession(ctx, client, lease.Options{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(context.Background())

	health, err := election.NewHealth(3 * time.Second)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/healthz", health)

	opts := election.Options{
		Value:  "10.0.0.1:8080",
		Health: health,
	}
	terms := 0
	err = election.Run(ctx, session, "scheduler", opts, func(ctx context.Context, token fence.Token) error {
		terms++
		fmt.Println("leads, with a token:", token > 0)
		if terms == 2 {
			stop()
		} else {
			operator(ctx, client)
		}
		// Work under ctx, and pass the token to the resource with every write. Return when ctx ends.
		<-ctx.Done()
		return nil
	}, election.WithOnLost(func(error) { fmt.Println("lost") }))
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// leads, with a token: true
	// lost
	// leads, with a token: true
	// stopped: true
}

// operator deletes the leader's key.
func operator(ctx context.Context, client *clientv3.Client) {
	leader, _ := election.FromContext(ctx)
	if _, err := client.Delete(context.WithoutCancel(ctx), leader.Key()); err != nil {
		log.Fatal(err)
	}
}

// A leadership as a handle, for work that is not a single function.
func ExampleCampaign() {
	client := connect()
	defer client.Close()
	ctx := context.Background()
	session, err := lease.NewSession(ctx, client, lease.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	wait, cancel := context.WithTimeout(ctx, 5*time.Second) // bounds the wait, not the leadership
	leader, err := election.Campaign(wait, session, "scheduler", election.Options{Value: "starting"})
	cancel()
	if err != nil {
		log.Fatal(err)
	}
	if err := leader.Proclaim(ctx, "10.0.0.1:8080"); err != nil {
		log.Fatal(err)
	}
	seen, err := election.Current(ctx, client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("leads:", leader.Err() == nil, seen.Value)

	if err := leader.Resign(ctx); err != nil { // lease.ErrLost if the leadership was lost before
		log.Fatal(err)
	}
	fmt.Println(context.Cause(leader.Context()))
	// Output:
	// leads: true 10.0.0.1:8080
	// election: resigned
}

// A program that observes the leader: here candidates of etcd's own package, which stand in the same queue.
func ExampleObserve() {
	client := connect()
	defer client.Close()
	ctx := context.Background()
	session, err := concurrency.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	candidate := concurrency.NewElection(session, "reports")

	// The steps of the candidate. Each change is observed before the next step.
	next := []func() error{
		func() error { return candidate.Campaign(ctx, "10.0.0.1:80") },
		func() error { return candidate.Proclaim(ctx, "10.0.0.1:8080") },
		func() error { return candidate.Resign(ctx) },
	}
	for leader, err := range election.Observe(ctx, client, "reports") {
		if err != nil {
			log.Fatal(err) // such as a missing permission; transient failures are not yielded
		}
		if leader.None() {
			fmt.Println("nobody leads")
		} else {
			fmt.Println(leader.Value)
		}
		if len(next) == 0 {
			break
		}
		if err := next[0](); err != nil {
			log.Fatal(err)
		}
		next = next[1:]
	}
	// Output:
	// nobody leads
	// 10.0.0.1:80
	// 10.0.0.1:8080
	// nobody leads
}
