package main

import (
	"bufio"
	"context"
	"strconv"

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
			err = t.addQueue(q)
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

// addQueue adds a row, and prints all if they are many.
func (t *table) addQueue(q lease.Queue) error {
	token, class := "-", "-"
	if len(q.Holders) > 0 {
		token, class = tokenText(q.Holders[0]), string(q.Holders[0].Class)
	}
	t.add(token, class, strconv.Itoa(len(q.Holders)), strconv.Itoa(len(q.Waiters)), q.Name)
	if len(t.rows) < rowsAtATime {
		return nil
	}
	return t.flush()
}
