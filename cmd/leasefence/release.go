package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// release has the argument and flags of "release".
type release struct {
	name  string
	mode  string
	yes   bool
	token string
}

// releaseModes are the modes: what each will do, what has become of the holder then, and the note on the page's
// timeline.
var releaseModes = map[string]struct {
	mode             lease.ReleaseMode
	does, done, note string
}{
	"ask": {
		lease.ReleaseAsked, "ask the holder to release the lock", "was asked to release the lock, and does so when its work has ended",
		"asked for the release from a page",
	},
	"wait": {
		lease.ReleaseWait, "wait until the holder has released the lock or its lease has ended", "no longer holds the lock", "waited for from a page",
	},
	"now": {
		lease.ReleaseNow, "delete the holder's key, which lets the next waiter in at once, while the holder may still run",
		"no longer holds the lock; it may run on until it notices", "deleted from a page",
	},
}

func (a *app) releaseCommand() *cobra.Command {
	var r release
	cmd := &cobra.Command{
		Use:   "release NAME [--mode ask|wait|now] [--yes --token N]",
		Short: "Free a lock from its present holder",
		Long: `release frees NAME from its present holder. Waiters keep their places.

  --mode ask   asks the holder, which releases the lock when its work has ended; a command under "leasefence lock" gets SIGTERM
  --mode wait  waits until the holder has released the lock or its lease has ended; it does not ask, and deletes the holder's key
               only if etcd has kept that key without its lease
  --mode now   deletes the holder's key and lets the next waiter in at once: only fencing keeps the two apart then

It shows the holder and asks you to type the name. Without a terminal it wants --yes and the holder's --token, as "get" shows it.
If somebody else holds the lock by then, nothing is released, and the exit code is 75.`,
		DisableFlagsInUseLine: true,
		Example: `  leasefence release jobs/nightly
  leasefence release jobs/nightly --yes --token 4711
  leasefence release jobs/nightly --mode now --yes --token 4711`,
		Args: oneName,
		RunE: func(_ *cobra.Command, args []string) error {
			r.name = args[0]
			return a.release(r)
		},
	}
	cmd.Flags().StringVar(&r.mode, "mode", "ask", "ask, wait or now")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask for the name")
	cmd.Flags().StringVar(&r.token, "token", "", "the holder's token; nobody else is released")
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"ask", "wait", "now"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) release(r release) error {
	mode, ok := releaseModes[r.mode]
	if !ok {
		return usageError("--mode is %q, want ask, wait or now", r.mode)
	}
	opts := lease.ReleaseOptions{Mode: mode.mode}
	if r.token != "" {
		token, err := fence.Parse(r.token)
		if err != nil {
			return usageError("--token: %w", err)
		}
		opts.Revision = token.Revision() // etcd does not know the era
	}
	switch {
	case r.yes && r.token == "":
		return usageError("--yes without --token: give the token of the holder that you have seen")
	case !r.yes && !term.IsTerminal(int(os.Stdin.Fd())):
		return usageError("standard input is no terminal, so nobody can type the name: want --yes --token N, with the token that get shows")
	}
	return a.use(func(client *clientv3.Client) error {
		if !r.yes {
			var err error
			if opts.Revision, err = a.confirm(client, r.name, opts.Revision, mode.does); err != nil {
				return err
			}
		}
		ctx, cancel := a.bounded(context.Background())
		defer cancel()
		if opts.Mode == lease.ReleaseWait {
			if err := a.reach(ctx, client, r.name); err != nil {
				return err
			}
			ctx = context.Background()
		}
		if err := lease.Release(ctx, client, r.name, opts); err != nil {
			return notReleased(err)
		}
		return a.print(map[string]any{"name": r.name, "mode": r.mode, "token": fmt.Sprint(opts.Revision)},
			fmt.Sprintf("%s: the holder with token %d %s\n", harmless(r.name), opts.Revision, mode.done))
	})
}

// notReleased gives err the exit code 75 if nobody was released, and names the other modes if the holder cannot be
// asked.
func notReleased(err error) error {
	if errors.Is(err, lease.ErrNotHeld) {
		return &exitError{exitNotObtained, err}
	}
	if strings.Contains(err.Error(), "cannot be asked") {
		return fmt.Errorf("%w: --mode now deletes its key, --mode wait waits until it has released the lock", err)
	}
	return err
}

// confirm shows the holder and asks the user to type the lock's name. It returns the holder's revision.
func (a *app) confirm(client *clientv3.Client, name string, rev int64, does string) (int64, error) {
	ctx, cancel := a.bounded(context.Background())
	defer cancel()
	q, err := lease.Inspect(ctx, client, name)
	if err != nil {
		return 0, err
	}
	if rev != 0 {
		q.Holders = slices.DeleteFunc(q.Holders, func(c lease.Contender) bool { return c.Revision != rev })
	}
	switch {
	case len(q.Holders) == 0:
		return 0, &exitError{exitNotObtained, fmt.Errorf("%q: %w", name, lease.ErrNotHeld)}
	case len(q.Holders) > 1:
		return 0, usageError("%d hold %q: name one with --token, such as %d", len(q.Holders), name, q.Holders[0].Revision)
	}
	shown := *a // on standard error: standard output may be piped
	shown.out, shown.width = a.stderr, terminalWidth(os.Stderr)
	if err := shown.people(q); err != nil {
		return 0, err
	}
	_, _ = fmt.Fprintf(a.stderr, "This will %s.\nType the name to continue: ", does)
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSuffix(line, "\n") != name {
		return 0, &exitError{exitNotObtained, errors.New("that is not the name: nothing was released")}
	}
	return q.Holders[0].Revision, nil
}
