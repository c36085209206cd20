package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// errViolated reports that a checker has found a violation. Exit code 1.
var errViolated = errors.New("the history violates an invariant")

// historyOf reads the file that a command takes as its only argument.
func historyOf(command string, args []string) ([]history.Event, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("%w: %s: %d files, want 1", errUsage, command, len(args))
	}
	events, err := history.ReadFile(args[0])
	if err == nil && len(events) == 0 {
		err = errors.New("no events")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", args[0], err)
	}
	return events, nil
}

// runCheck is the command "check": it prints what all checkers find in a history.
func runCheck(args []string, out io.Writer) error {
	events, err := historyOf("check", args)
	if err != nil {
		return err
	}
	report := check.Check(events)
	if err := report.Print(out); err != nil {
		return err
	}
	switch {
	case len(report.Violations) > 0:
		return errViolated
	case len(report.Malformed) > 0:
		return fmt.Errorf("read %s: %s", args[0], report.Malformed[0])
	}
	return nil
}
