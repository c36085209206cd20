package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// app is one run of leasefence.
type app struct {
	etcd   etcdFlags
	output string
	out    io.Writer
	stderr io.Writer
	width  int // of the terminal behind out, 0 if out is no terminal
}

const (
	outputTable = "table"
	outputJSON  = "json"
)

func newApp() *app {
	return &app{output: outputTable, out: os.Stdout, stderr: os.Stderr, width: terminalWidth(os.Stdout)}
}

// run executes a command line and returns the exit code.
func (a *app) run(args []string) int {
	root := a.command()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exitError](err)
	if !ok { // an error of cobra's, about the command line
		exit = &exitError{exitUsage, err}
	}
	a.complain(exit, cmd)
	return exit.code
}

// complain prints the reason for an exit code on standard error.
func (a *app) complain(exit *exitError, cmd *cobra.Command) {
	switch {
	case exit.err == nil:
	case a.output == outputJSON:
		_ = printJSON(a.stderr, map[string]any{"error": exit.err.Error(), "code": exit.code})
	default:
		a.say("%v", exit.err)
		if exit.code == exitUsage {
			_, _ = fmt.Fprintf(a.stderr, "usage: %s\nsee %s --help\n", cmd.UseLine(), cmd.CommandPath())
		}
	}
}

// say writes a message to standard error.
func (a *app) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if a.output == outputJSON {
		_ = printJSON(a.stderr, map[string]any{"message": text})
		return
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = harmless(line)
	}
	_, _ = fmt.Fprintln(a.stderr, "leasefence:", strings.Join(lines, "\n"))
}

// logger is the library's logger: warnings and errors, on standard error.
func (a *app) logger() *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelWarn}
	if a.output == outputJSON {
		return slog.New(slog.NewJSONHandler(visible{a.stderr}, opts))
	}
	return slog.New(slog.NewTextHandler(a.stderr, opts))
}

// version is the module's version: the release that go install built, or what Go derives from a clone.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:     "leasefence",
		Version: version(),
		Short:   "Locks and elections on etcd, with fencing tokens",
		Long: `leasefence runs commands under locks on etcd, and shows and frees locks and elections.

A NAME is the full name in etcd, with any lease.Options.Prefix. Flags and environment are those of etcdctl: ETCDCTL_ENDPOINTS
stands for --endpoints, and so on. A flag wins over the environment.

` + exitCodes,
		Example: `  leasefence --endpoints 10.0.0.1:2379,10.0.0.2:2379 lock jobs/nightly -- backup --all
  leasefence ls jobs/
  leasefence doctor jobs/`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.output != outputTable && a.output != outputJSON {
				bad := a.output
				a.output = outputTable
				return usageError("--output is %q, want %s or %s", bad, outputTable, outputJSON)
			}
			return a.etcd.readEnv(cmd.Flags())
		},
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.PersistentFlags().StringVarP(&a.output, "output", "o", a.output, "output format: table or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp))
	a.etcd.register(root.PersistentFlags())
	root.AddCommand(a.lockCommand(), a.electCommand(), a.lsCommand(), a.getCommand(), a.watchCommand(), a.releaseCommand(), a.explainCommand(),
		a.doctorCommand(), a.uiCommand())
	return root
}

// connect makes a client. With a user, etcd's client authenticates before it returns: until ctx ends, or for
// --dial-timeout or patience, whichever is longer.
func (a *app) connect(ctx context.Context, patience time.Duration) (*clientv3.Client, error) {
	config, err := a.etcd.config()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, end)()
	config.Context = life
	config.DialTimeout = max(config.DialTimeout, patience)
	client, err := clientv3.New(config)
	if err != nil {
		end()
		if errors.Is(err, context.DeadlineExceeded) { // etcd's client does not name the endpoints
			return nil, silent(config.DialTimeout, config.Endpoints)
		}
		return nil, fmt.Errorf("etcd at %q: %w", config.Endpoints, err)
	}
	return client, nil
}

// ask calls f with a client and a context that ends after --command-timeout.
func (a *app) ask(f func(ctx context.Context, client *clientv3.Client) error) error {
	return a.use(func(client *clientv3.Client) error {
		ctx, cancel := a.bounded(context.Background())
		defer cancel()
		return caused(ctx, client, f(ctx, client))
	})
}

// caused returns the cause of ctx for the error of a request that ctx has ended, and why there is no connection: etcd's
// client does not name the endpoints, nor a certificate that is refused.
func caused(ctx context.Context, client *clientv3.Client, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return etcd.Of(client).Ended(ctx, cmp.Or(context.Cause(ctx), err))
	}
	return err
}

// use calls f with a client, and closes the client afterwards.
func (a *app) use(f func(client *clientv3.Client) error) error {
	client, err := a.connect(context.Background(), 0)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = client.Close() }()
	return failed(f(client))
}

// reach reports soon if etcd cannot be reached, or does not let this user read the keys of a name. What follows waits
// without a bound.
func (a *app) reach(ctx context.Context, client *clientv3.Client, name string) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	_, err := client.Get(ctx, name+"/", clientv3.WithCountOnly())
	return caused(ctx, client, err)
}

// bounded returns a context that ends after --command-timeout. Its cause then is that etcd has not answered.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("%w, or not in full (--command-timeout)", silent(a.etcd.commandTimeout, a.etcd.endpoints))
	return context.WithTimeoutCause(ctx, a.etcd.commandTimeout, cause)
}

func silent(d time.Duration, endpoints []string) error {
	return fmt.Errorf("etcd at %q has not answered for %v", endpoints, d)
}
