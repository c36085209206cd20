package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/mix"
)

// command is a command of the program, with its own flags. Its error ends the program with a [code].
type command struct {
	name, args, about string
	run               func(args []string, out io.Writer) error
}

// commands lists all commands.
var commands = []command{
	{"check", "FILE", "look for violations in a history", runCheck},
	{"run", "[-seed n]", "a random mix of faults, which must reach its floors", runRun},
	{"soak", "[-duration 30m]", "a random mix of faults for hours", runSoak},
	{"trace", "FILE", "a history for a viewer of traces", runTrace},
}

// errUsage reports wrong arguments. Exit code 2.
var errUsage = errors.New("usage")

func main() {
	etcdproc.Serve()
	mix.Serve()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errs io.Writer) int {
	err := dispatch(args, out)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(errs, "safety:", err)
	if errors.Is(err, errUsage) {
		usage(errs)
	}
	return code(err)
}

// code returns the exit code for an error.
func code(err error) int {
	if errors.Is(err, errViolated) || errors.Is(err, errFailed) {
		return 1
	}
	return 2
}

func dispatch(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: no command", errUsage)
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(args[1:], out)
		}
	}
	return fmt.Errorf("%w: no command %q", errUsage, args[0])
}

func usage(w io.Writer) {
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  safety %-6s %-20s %s\n", c.name, c.args, c.about)
	}
}
