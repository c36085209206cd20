package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

func (a *app) getCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `get shows the holders of NAME and then its waiters, in their order: owner, token, and the remaining time of the lease. A slot
of a semaphore is NAME/~slot/2, a node of a tree NAME/~part. TOKEN is the fencing token in era 0.`,
		Example: `  leasefence get jobs/nightly
  leasefence get jobs/nightly -o json | jq -r '.holders[0].owner'`,
		Args: oneName,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.ask(func(ctx context.Context, client *clientv3.Client) error {
				q, err := lease.Inspect(ctx, client, args[0])
				if err != nil {
					return err
				}
				return a.show(q)
			})
		},
	}
}

// show prints a queue, with the remaining time of its leases.
func (a *app) show(q lease.Queue) error {
	if a.output == outputJSON {
		return printJSON(a.out, queueOf(q, known{owners: true, ttls: true}))
	}
	if len(q.Holders)+len(q.Waiters) == 0 {
		_, err := fmt.Fprintf(a.out, "nobody holds %s, nobody waits\n", harmless(q.Name))
		return err
	}
	return a.people(q)
}

// people prints holders and waiters as a table.
func (a *app) people(q lease.Queue) error {
	t := a.newTable("ROLE", "CLASS", "TOKEN", "TTL", "LEASE", "OWNER", "KEY")
	row := func(role string, c lease.Contender) {
		t.add(role, string(c.Class), tokenText(c), c.TTL.String(), leaseText(c.Lease), c.Owner, c.Key)
	}
	for _, c := range q.Holders {
		row("holds", c)
	}
	for _, c := range q.Waiters {
		row("waits", c)
	}
	return t.flush()
}
