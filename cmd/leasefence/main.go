// Command leasefence runs commands under locks on etcd, and shows and frees locks:
//
//	leasefence lock jobs/nightly -- backup --all
//	leasefence ls jobs/
//
// "leasefence help" lists the commands, with examples, and the exit codes. Flags and environment are those of etcdctl.
// "lock" does what "etcdctl lock NAME CMD" does, and the two exclude each other on the same name; but it stops the
// command when the lock is lost, and gives it the fencing token.
package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/leasefence/leasefence/cmd/leasefence/internal/process"
	locks "github.com/leasefence/leasefence/internal/queue"
)

// The exit codes; see exitCodes.
const (
	exitFailed      = 1
	exitUsage       = 64
	exitLost        = 74
	exitNotObtained = 75
	exitCannotRun   = 126
	exitNotFound    = 127
)

const exitCodes = `Exit codes:
  0      done
  1      failed: etcd does not answer or refuses; doctor found a FAIL
  64     wrong usage; nothing was done
  74     lock: the lock was lost while CMD ran, whatever CMD's own exit code
  75     lock, elect: not obtained: somebody else holds it (--try, --wait), or etcd does not answer or refuses;
         release: nobody holds it, or not with that token, or the name was not typed
  126    CMD cannot be executed
  127    CMD was not found
  128+n  CMD died of signal n, or signal n came while leasefence waited
  Otherwise lock and elect exit with CMD's exit code.
`

// exitError carries the exit code of leasefence.
type exitError struct {
	code int
	err  error // nil: everything has been printed already
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

// failed returns err with exit code 1, unless it has a code already. Without it, run takes an error for wrong usage.
func failed(err error) error {
	if _, ok := errors.AsType[*exitError](err); ok || err == nil {
		return err
	}
	return &exitError{exitFailed, err}
}

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func main() {
	args := make([]string, 0, len(os.Args))
	for _, arg := range os.Args[1:] {
		args = append(args, strings.Clone(arg))
	}
	hidePasswords(os.Args)
	os.Exit(newApp().run(args))
}

// hidePasswords overwrites the passwords in args, which is os.Args itself. The caller has copied the strings that it
// still needs.
func hidePasswords(args []string) {
	for i, arg := range args {
		switch {
		case arg == "--": // the arguments of CMD follow
			return
		case strings.HasPrefix(arg, "--password="):
			process.Hide(arg[len("--password="):])
		case i > 0 && args[i-1] == "--password":
			process.Hide(arg)
		case strings.HasPrefix(arg, "--user="), i > 0 && args[i-1] == "--user":
			_, password, _ := strings.Cut(arg, ":")
			process.Hide(password)
		}
	}
}

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
	root.SetOut(a.out)
	root.SetErr(a.stderr)
	// For an unknown argument, cobra's own commands print a help and exit with 0.
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	completion.RunE = root.RunE // cobra checks the arguments of a command that can run
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, topic []string) error {
		found, unknown, _ := root.Find(topic)
		return cobra.NoArgs(found, unknown)
	}
	return root
}

// oneName checks the arguments of a command that takes one NAME of an existing lock.
func oneName(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	if err := checkName(args[0]); err != nil {
		return usageError("%w", err)
	}
	return nil
}

// checkName checks a name as it stands in etcd. Unlike a name that a user may lock, it may have a session's prefix, and
// parts that begin with "~": those of slots and of nodes of a tree.
func checkName(name string) error {
	if err := locks.CheckQueueName(name); err != nil {
		return fmt.Errorf("NAME %w", err)
	}
	return nil
}

// prefixIn is the PREFIX after n other arguments, empty if none is given.
func prefixIn(args []string, n int) string {
	if len(args) == n {
		return ""
	}
	return args[n]
}

// thenPrefix accepts n arguments and an optional PREFIX after them.
func thenPrefix(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cobra.RangeArgs(n, n+1)(cmd, args); err != nil || len(args) == n {
			return err
		}
		switch prefix := args[n]; {
		case len(prefix) > locks.MaxFullName:
			return usageError("PREFIX has %d bytes, want 0 to %d", len(prefix), locks.MaxFullName)
		case !utf8.ValidString(prefix):
			return usageError("PREFIX is %q, want UTF-8", prefix)
		}
		return nil
	}
}
