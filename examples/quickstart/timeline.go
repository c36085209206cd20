package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// The escape sequences of a terminal.
const (
	reset   = "\x1b[0m"
	bold    = "\x1b[1m"
	dim     = "\x1b[2m"
	red     = "\x1b[31m"
	green   = "\x1b[32m"
	yellow  = "\x1b[33m"
	magenta = "\x1b[35m"
	cyan    = "\x1b[36m"

	clearLine = "\r\x1b[K"
)

// actor is who a line of the timeline is about.
type actor struct{ label, colour string }

var (
	mainActor   = actor{"main", bold}
	etcdActor   = actor{"etcd", dim}
	ledgerActor = actor{"ledger", magenta}

	workerColours = map[string]string{"A": cyan, "B": yellow}
)

// tone is the colour of what happened.
type tone string

const (
	plain tone = ""
	good  tone = green
	bad   tone = bold + red
)

// pace is the time between two lines on a terminal, where a person follows them. It is for show only: it makes the
// run longer and changes nothing else.
const pace = 120 * time.Millisecond

// timeline prints what happens: live and in colour on a terminal, as plain text elsewhere. It is safe for
// concurrent use.
type timeline struct {
	start    time.Time
	terminal bool
	coloured bool
	fail     func(error) // ends the run

	mu      sync.Mutex // guards the fields below
	out     io.Writer
	err     error
	chapter string
}

// newTimeline writes to out and calls fail if that is not possible.
func newTimeline(out *os.File, fail func(error)) *timeline {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &timeline{
		start: time.Now(), out: out, fail: fail, chapter: "start",
		terminal: terminal, coloured: terminal && os.Getenv("NO_COLOR") == "",
	}
}

// begin prints the heading of a chapter, which is also the name of the step if it fails.
func (t *timeline) begin(chapter string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chapter = chapter
	t.print(fmt.Sprintf("\n%s\n", t.paint(bold, chapter)))
}

// step is the present chapter.
func (t *timeline) step() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chapter
}

// header names the columns.
func (t *timeline) header() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print(t.paint(dim, fmt.Sprintf("%8s  %-10s %5s  %s", "time", "process", "token", "what happened")) + "\n")
}

// add prints a line: when, who, with which token (none if 0), what.
func (t *timeline) add(who actor, token fence.Token, tone tone, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := ""
	if token.Valid() {
		number = token.String()
	}
	t.print(fmt.Sprintf("%7.3fs  %s %5s  %s\n", time.Since(t.start).Seconds(),
		t.paint(who.colour, fmt.Sprintf("%-10s", who.label)), number, t.paint(string(tone), what)))
	if t.terminal {
		time.Sleep(pace)
	}
}

// waiting shows on a terminal, until stop is called, that time passes.
func (t *timeline) waiting(what string) (stop func()) {
	if !t.terminal {
		return func() {}
	}
	began := time.Now()
	done := make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				passed := time.Since(began)
				dots := strings.Repeat(".", int(passed/(200*time.Millisecond))%20)
				t.mu.Lock()
				t.print(t.paint(dim, fmt.Sprintf("%7.1fs  %s %s", time.Since(t.start).Seconds(), what, dots)))
				t.mu.Unlock()
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		shown.Wait()
		t.flush()
	})
}

// conclude prints the verdict.
func (t *timeline) conclude(v verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	colour := bad
	if v.ok {
		colour = bold + green
	}
	t.print("\nThe ledger at the end\n")
	for _, line := range v.ledger {
		t.print("    " + line + "\n")
	}
	t.print("\n" + t.paint(string(colour), v.result) + " " + v.why + "\n")
}

// flush removes a line that says that time passes.
func (t *timeline) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print("")
}

// failed reports whether something could not be printed.
func (t *timeline) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err != nil
}

// print writes text in place of what the present line of a terminal shows. t.mu must be held.
func (t *timeline) print(text string) {
	if t.terminal {
		text = clearLine + text
	}
	if _, err := io.WriteString(t.out, text); err != nil && t.err == nil {
		t.err = err
		t.fail(err)
	}
}

func (t *timeline) paint(colour, text string) string {
	if !t.coloured || colour == "" {
		return text
	}
	return colour + text + reset
}
