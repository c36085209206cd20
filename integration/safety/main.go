// Safety checks the histories that the random mix of package mix leaves, and draws them.
//
//	go -C integration run ./safety check FILE
//	go -C integration run ./safety trace FILE > trace.json
//
// Check runs all checkers on a history and prints what they have compared and found. It exits with 1 if an invariant is
// violated or no run can have written the history, and with 2 if the file is no history. Trace turns a history into a
// file that ui.perfetto.dev and other viewers of Chrome's traces draw.
//
// Paths are relative to the folder integration.
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
	does := map[string]func([]history.Event, io.Writer) error{"check": checkHistory, "trace": trace}
	if len(args) != 2 || does[args[0]] == nil {
		return errors.New("usage: safety check FILE | trace FILE")
	}
	events, err := history.ReadFile(args[1])
	if err == nil && len(events) == 0 {
		err = errors.New("no events")
	}
	if err == nil {
		err = does[args[0]](events, out)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
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
