package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List locks and elections, with their holders and waiters",
		Long: `ls lists the locks and elections whose names begin with PREFIX, nested names before their parent. TOKEN and CLASS are those of
the first holder. It reads only the names of keys: "get" also shows owners and the remaining time of leases. In JSON the output is
one array, printed while it is read.`,
		Example: `  leasefence ls
  leasefence ls jobs/
  leasefence ls jobs/ -o json | jq -r '.[] | select(.waiters != []).name'`,
		Args: thenPrefix(0),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.ask(func(ctx context.Context, client *clientv3.Client) error {
				return prefixWanted(a.list(ctx, client, prefixIn(args, 0)))
			})
		},
	}
}

// rowsAtATime bounds how many rows are kept before they are printed. Columns are aligned among these.
const rowsAtATime = 1000

func (a *app) list(ctx context.Context, client *clientv3.Client, prefix string) error {
	out := bufio.NewWriterSize(a.out, 64<<10) // it keeps the first error for the last Flush
	t := a.newTable("TOKEN", "CLASS", "HOLDERS", "WAITERS", "NAME")
	t.to = out
	before, after := "[\n", "[]\n" // a queue of the JSON array, and the last one
	for q, err := range lease.List(ctx, client, prefix) {
		switch {
		case err != nil:
		case a.output == outputJSON:
			_, _ = out.WriteString(before)
			before, after = ",", "]\n"
			err = printJSON(out, queueOf(q, known{}))
		default:
			token, class := "-", "-"
			if len(q.Holders) > 0 {
				token, class = tokenText(q.Holders[0]), string(q.Holders[0].Class)
			}
			t.add(token, class, strconv.Itoa(len(q.Holders)), strconv.Itoa(len(q.Waiters)), q.Name)
			if len(t.rows) == rowsAtATime {
				err = t.flush()
			}
		}
		if err != nil {
			_ = out.Flush() // the rows so far; the exit code says that some are missing
			return err
		}
	}
	if a.output == outputJSON {
		_, _ = out.WriteString(after)
	} else if err := t.flush(); err != nil {
		return err
	}
	return out.Flush()
}

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
