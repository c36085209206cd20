package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// child is a worker process, as its parent sees it.
type child struct {
	name   string
	actor  timeline.Actor
	tl     *timeline.Timeline
	cmd    *exec.Cmd
	stdin  io.Writer
	stderr strings.Builder // read only after the end

	// reports is closed when the worker has closed its standard output, as it does by ending.
	reports chan report
	reader  sync.WaitGroup
	kill    context.CancelFunc
	once    sync.Once
	endErr  error
}

// startChild starts this program as a worker. The caller stops it.
func startChild(ctx context.Context, tl *timeline.Timeline, config workerConfig) (*child, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, kill := context.WithCancel(ctx) // SIGKILL, which ends a stopped process too
	c := &child{name: config.Name, tl: tl, reports: make(chan report), kill: kill}
	c.cmd = exec.CommandContext(ctx, exe)
	c.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	c.cmd.SysProcAttr = ownGroup()
	c.cmd.WaitDelay = time.Second
	c.cmd.Stderr = &c.stderr
	if config.Verbose {
		c.cmd.Stderr = io.MultiWriter(&c.stderr, os.Stderr)
	}
	stdin, errIn := c.cmd.StdinPipe()
	stdout, errOut := c.cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		kill()
		return nil, err
	}
	c.stdin = stdin
	if err := c.cmd.Start(); err != nil {
		kill()
		return nil, err
	}
	c.actor = timeline.Worker(c.name, c.pid())
	c.reader.Go(func() {
		defer close(c.reports)
		lines := json.NewDecoder(stdout)
		for {
			var r report
			if lines.Decode(&r) != nil { // the worker has ended: whoever waits for a report tells
				return
			}
			select {
			case c.reports <- r:
			case <-ctx.Done():
				return
			}
		}
	})
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// expect waits for the worker's next report, which must be of one of the kinds, and shows it. The worker waits
// until it is told to go on.
func (c *child) expect(ctx context.Context, kinds ...kind) (report, error) {
	r, err := c.next(ctx)
	if err != nil {
		return report{}, fmt.Errorf("wait for %s to report %q: %w", c.name, kinds, err)
	}
	if !slices.Contains(kinds, r.Kind) {
		return report{}, fmt.Errorf("%s has reported %q (%s) instead of %q", c.name, r.Kind, r.Text, kinds)
	}
	tone := timeline.Plain
	if r.Lost {
		tone = timeline.Bad
	}
	if r.Kind != written { // the ledger has just told that
		c.tl.Add(c.actor, r.Token, tone, r.Text)
	}
	return r, nil
}

// errEnded says that a worker has come to its end.
var errEnded = errors.New("it has ended")

// next is the worker's next report.
func (c *child) next(ctx context.Context) (report, error) {
	select {
	case r, ok := <-c.reports:
		switch {
		case ctx.Err() != nil: // and the worker was killed for it
			return report{}, context.Cause(ctx)
		case ok:
			return r, nil
		}
		if err := c.wait(); err != nil {
			return report{}, err
		}
		return report{}, errEnded
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	}
}

// goOn answers the worker's last report. A worker that is stopped finds the answer when it is resumed.
func (c *child) goOn() error {
	if _, err := io.WriteString(c.stdin, "go on\n"); err != nil {
		return fmt.Errorf("answer %s: %w", c.name, err)
	}
	return nil
}

// end waits for the worker to end by itself.
func (c *child) end(ctx context.Context) error {
	r, err := c.next(ctx)
	switch {
	case err == nil:
		return fmt.Errorf("%s has reported %q (%s) where it should have ended", c.name, r.Kind, r.Text)
	case errors.Is(err, errEnded):
		return nil
	}
	return fmt.Errorf("wait for %s to end: %w", c.name, err)
}

// wait returns when the process is gone and tells if it failed.
func (c *child) wait() error {
	c.once.Do(func() {
		c.reader.Wait()
		c.endErr = c.cmd.Wait()
		c.kill()
	})
	return c.endErr
}

// explain stops the worker and, if the run has failed, adds what it has written to its standard error.
func (c *child) explain(err error) error {
	if text := c.stop(); err != nil && text != "" {
		return fmt.Errorf("%w\n%s has written to its standard error:\n    %s", err, c.name, strings.ReplaceAll(text, "\n", "\n    "))
	}
	return err
}

// stop ends the worker at once, whatever state it is in, and returns what it has written to its standard error.
// After the worker's own end it only does the latter.
func (c *child) stop() string {
	c.kill()
	_ = c.wait() // it was killed, or end has told
	return strings.TrimSpace(c.stderr.String())
}
