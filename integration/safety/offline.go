package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/integration/safety/timeline"
)

var errViolated = errors.New("the history violates an invariant")

// parse reads flags that may stand before and after the file, which it returns.
func parse(set *flag.FlagSet, args []string) (string, error) {
	set.SetOutput(io.Discard) // the error says it
	var files []string
	for len(args) > 0 {
		if err := set.Parse(args); err != nil {
			return "", fmt.Errorf("%w: %s: %w", errUsage, set.Name(), err)
		}
		if args = set.Args(); len(args) > 0 {
			files, args = append(files, args[0]), args[1:]
		}
	}
	if len(files) != 1 {
		return "", fmt.Errorf("%w: %s: %d files, want 1", errUsage, set.Name(), len(files))
	}
	return files[0], nil
}

func readHistory(path string) (events []history.Event, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("read a history: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	events, err = history.ReadAll(f)
	if err == nil && len(events) == 0 {
		err = errors.New("no events")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return events, nil
}

func runCheck(args []string, out io.Writer) error {
	var opts check.Options
	set := flag.NewFlagSet("check", flag.ContinueOnError)
	set.DurationVar(&opts.TTL, "ttl", 0, "the longest that was granted")
	set.StringVar(&opts.Prefix, "prefix", "", "of the keys")
	set.DurationVar(&opts.Timeout, "timeout", 0, "for each window that porcupine is given")
	path, err := parse(set, args)
	if err != nil {
		return err
	}
	events, err := readHistory(path)
	if err != nil {
		return err
	}
	report := check.Check(events, opts)
	if err := report.Print(out); err != nil {
		return err
	}
	switch {
	case len(report.Violations) > 0:
		return exit{1, errViolated}
	case len(report.Malformed) > 0:
		return fmt.Errorf("read %s: %s", path, report.Malformed[0])
	}
	return nil
}

func runDraw(args []string, _ io.Writer) error {
	var opts timeline.Options
	var target, names string
	set := flag.NewFlagSet("draw", flag.ContinueOnError)
	set.StringVar(&target, "o", "", "the picture")
	set.DurationVar(&opts.From, "from", 0, "the beginning of what is drawn")
	set.DurationVar(&opts.To, "to", 0, "its end")
	set.StringVar(&opts.Title, "title", "", "of the picture")
	set.StringVar(&names, "names", "", "of locks, elections and resources, with commas between; default: all")
	path, err := parse(set, args)
	if err != nil {
		return err
	}
	if target == "" {
		return fmt.Errorf("%w: draw: -o is empty, want a file", errUsage)
	}
	if names != "" {
		opts.Names = strings.Split(names, ",")
	}
	events, err := readHistory(path)
	if err != nil {
		return err
	}
	var picture bytes.Buffer
	if err := timeline.Draw(&picture, events, opts); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Clean(target), picture.Bytes(), 0o600); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}
