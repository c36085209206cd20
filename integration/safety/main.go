package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// errFailed reports violations. Exit code 1. Other errors have exit code 2.
var errFailed = errors.New("the history has violations")

func main() {
	err := dispatch(os.Args[1:], os.Stdout)
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "safety:", err)
	if errors.Is(err, errFailed) {
		os.Exit(1)
	}
	os.Exit(2)
}

func dispatch(args []string, out io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "check":
		return onHistory(args[1], out, checkHistory)
	case len(args) == 2 && args[0] == "trace":
		return onHistory(args[1], out, trace)
	}
	return errors.New("usage: safety check FILE | trace FILE")
}

func onHistory(path string, out io.Writer, do func([]history.Event, io.Writer) error) error {
	events, err := history.ReadFile(path)
	if err == nil && len(events) == 0 {
		err = errors.New("no events")
	}
	if err == nil {
		err = do(events, out)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func checkHistory(events []history.Event, out io.Writer) error {
	report := check.Check(events)
	err := report.Print(out)
	if err == nil && len(report.Violations) > 0 {
		err = errFailed
	}
	return err
}
