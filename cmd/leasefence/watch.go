package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

func (a *app) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch NAME",
		Short: "Show who holds a lock, and every change",
		Long: `watch prints who holds NAME and how many wait, and a new line after every change, until a signal ends it. It survives broken
connections; while etcd cannot be reached, it prints nothing. In JSON each line is an object.`,
		Example: `  leasefence watch jobs/nightly
  leasefence watch jobs/nightly -o json | jq -r '.holders[0].owner // "nobody"'`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.use(func(client *clientv3.Client) error { return a.watch(cmd.Context(), client, args[0]) })
		},
	}
}

// change is a line of output.
type change struct {
	Time time.Time `json:"time"`
	queue
}

func (a *app) watch(ctx context.Context, client *clientv3.Client, name string) error {
	if err := a.reach(ctx, client, name); err != nil {
		return err
	}
	if a.output != outputJSON {
		if err := a.printRow("TIME", "TOKEN", "CLASS", "HOLDERS", "WAITERS", "OWNER"); err != nil {
			return err
		}
	}
	for q, err := range lease.Watch(ctx, client, name) {
		if err == nil {
			err = a.printChange(change{time.Now().Truncate(time.Second), queueOf(q, known{owners: true})})
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (a *app) printChange(c change) error {
	if a.output == outputJSON {
		return printJSON(a.out, c)
	}
	token, class, owner := "-", "-", "-"
	if len(c.Holders) > 0 {
		first := c.Holders[0]
		token, class, owner = first.Token, string(first.Class), harmless(*first.Owner)
	}
	return a.printRow(c.Time.Format(time.RFC3339), token, class, len(c.Holders), len(c.Waiters), owner)
}

// printRow prints a row at once. A [table] would wait for further rows, to align them.
func (a *app) printRow(cells ...any) error {
	line := fmt.Sprintf("%-25s  %-9s  %-9s  %-7v  %-7v  %s\n", cells...)
	_, err := io.WriteString(a.out, fit(line, a.width))
	return err
}
