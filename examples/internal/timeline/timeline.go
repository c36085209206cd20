// Package timeline prints what happens in an example: when, who, with which token, what. It is live and in colour on
// a terminal, plain text elsewhere.
package timeline

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
	blue    = "\x1b[34m"
	magenta = "\x1b[35m"
	cyan    = "\x1b[36m"

	clearLine = "\r\x1b[K"
)

// Actor is who a line of the timeline is about.
type Actor struct{ label, colour string }

// The actors that are not workers.
var (
	Main   = Actor{"main", bold}
	Etcd   = Actor{"etcd", dim}
	Ledger = Actor{"ledger", magenta}
)

var workerColours = map[string]string{"A": cyan, "B": yellow, "C": blue}

// Worker is a process with a name.
func Worker(name string, pid int) Actor {
	return Actor{fmt.Sprintf("%s %d", name, pid), workerColours[name]}
}

// Tone is the colour of what happened.
type Tone string

// The tones.
const (
	Plain Tone = ""
	Good  Tone = green
	Bad   Tone = bold + red
)

// Timeline prints what happens. It is safe for concurrent use.
type Timeline struct {
	start    time.Time
	terminal bool
	coloured bool
	pace     time.Duration
	fail     func(error) // ends the run

	mu      sync.Mutex // guards the fields below
	out     io.Writer
	err     error
	chapter string
}

// New writes to out and calls fail if that is not possible. The pace is the time between two lines on a terminal,
// where a person follows them. It is for show only: it makes the run longer and changes nothing else.
func New(out io.Writer, pace time.Duration, fail func(error)) *Timeline {
	terminal := isTerminal(out)
	return &Timeline{
		start: time.Now(), out: out, pace: pace, fail: fail, chapter: "start",
		terminal: terminal, coloured: terminal && os.Getenv("NO_COLOR") == "",
	}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Terminal reports whether a person may be watching.
func (t *Timeline) Terminal() bool { return t.terminal }

// Begin prints the heading of a chapter, which is also the name of the step if it fails.
func (t *Timeline) Begin(chapter string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chapter = chapter
	t.print(fmt.Sprintf("\n%s\n", t.paint(bold, chapter)))
}

// Step is the present chapter.
func (t *Timeline) Step() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chapter
}

// Header names the columns.
func (t *Timeline) Header() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print(t.paint(dim, fmt.Sprintf("%8s  %-10s %5s  %s", "time", "process", "token", "what happened")) + "\n")
}

// Add prints a line: now, who, with which token (none if 0), what.
func (t *Timeline) Add(who Actor, token fence.Token, tone Tone, what string) {
	t.add(time.Now, who, token, tone, what)
}

// AddAt is Add for what happened a moment ago.
func (t *Timeline) AddAt(when time.Time, who Actor, token fence.Token, tone Tone, what string) {
	t.add(func() time.Time { return when }, who, token, tone, what)
}

func (t *Timeline) add(when func() time.Time, who Actor, token fence.Token, tone Tone, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := ""
	if token.Valid() {
		number = token.String()
	}
	t.print(fmt.Sprintf("%7.3fs  %s %5s  %s\n", when().Sub(t.start).Seconds(),
		t.paint(who.colour, fmt.Sprintf("%-10s", who.label)), number, t.paint(string(tone), what)))
	if t.terminal {
		time.Sleep(t.pace)
	}
}

// Note prints text as it is, and a line break.
func (t *Timeline) Note(tone Tone, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print(t.paint(string(tone), text) + "\n")
}

// Waiting shows on a terminal, until stop is called, that time passes.
func (t *Timeline) Waiting(what string) (stop func()) {
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
		t.Flush()
	})
}

// Flush removes a line that says that time passes.
func (t *Timeline) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print("")
}

// print writes text in place of what the present line of a terminal shows. t.mu must be held.
func (t *Timeline) print(text string) {
	if t.terminal {
		text = clearLine + text
	}
	if _, err := io.WriteString(t.out, text); err != nil && t.err == nil {
		t.err = err
		t.fail(err)
	}
}

func (t *Timeline) paint(colour, text string) string {
	if !t.coloured || colour == "" {
		return text
	}
	return colour + text + reset
}
