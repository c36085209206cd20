//nolint:errcheck // deferred closing in examples
package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
)

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

// A program that asks who leads now.
func ExampleCurrent() {
	client := connect()
	defer client.Close()
	ctx := context.Background()

	_, err := election.Current(ctx, client, "reports")
	fmt.Println(errors.Is(err, election.ErrNoLeader))

	session, err := concurrency.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	if err := concurrency.NewElection(session, "reports").Campaign(ctx, "10.0.0.1:80"); err != nil {
		log.Fatal(err)
	}
	leader, err := election.Current(ctx, client, "reports")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(leader.Value)
	// Output:
	// true
	// 10.0.0.1:80
}
