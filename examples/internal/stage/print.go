//go:build unix

package stage

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"
)

// colour is an escape sequence of a terminal.
type colour string

// The colours of actors, and of good and bad news.
const (
	plain  colour = ""
	bold   colour = "\x1b[1m"
	dim    colour = "\x1b[2m"
	good   colour = "\x1b[32m"
	bad    colour = "\x1b[1m\x1b[31m"
	purple colour = "\x1b[35m"
	reset         = "\x1b[0m"
)

// actor is the subject of a line.
type actor struct {
	label  string
	colour colour
}

// The actors that are not processes of the service.
var (
	inMain   = actor{"main", bold}
	inEtcd   = actor{"etcd", dim}
	inLedger = actor{"ledger", purple}
)

var processColours = map[string]colour{"A": "\x1b[36m", "B": "\x1b[33m", "C": "\x1b[34m"}

// printer prints events: time, actor, token, text; on a terminal in colour. It is safe for concurrent use.
type printer struct {
	start    time.Time
	coloured bool
	fail     func(error) // ends the run

	mu  sync.Mutex // serializes writes to out
	out io.Writer
}

func newPrinter(out *os.File, fail func(error)) *printer {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &printer{start: time.Now(), out: out, fail: fail, coloured: terminal && os.Getenv("NO_COLOR") == ""}
}

// line prints an event of the time when.
func (p *printer) line(when time.Time, who actor, token fence.Token, tone colour, what string) {
	number := ""
	if token.Valid() {
		number = token.String()
	}
	p.print(fmt.Sprintf("%7.3fs  %s %5s  %s\n", when.Sub(p.start).Seconds(),
		p.paint(who.colour, fmt.Sprintf("%-10s", who.label)), number, p.paint(tone, what)))
}

// now prints an event of the present time.
func (p *printer) now(who actor, token fence.Token, tone colour, format string, args ...any) {
	p.line(time.Now(), who, token, tone, fmt.Sprintf(format, args...))
}

// note prints text as it is, and a line break.
func (p *printer) note(tone colour, format string, args ...any) {
	p.print(p.paint(tone, fmt.Sprintf(format, args...)) + "\n")
}

func (p *printer) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := io.WriteString(p.out, text); err != nil {
		p.fail(err)
	}
}

func (p *printer) paint(c colour, text string) string {
	if !p.coloured || c == plain {
		return text
	}
	return string(c) + text + reset
}

// event prints an event of a process.
func (p *printer) event(e Event) {
	tone, text := plain, e.What
	switch e.What {
	case Leads, Locks:
		tone = good
	case IsRefused, HasLost, LockIsLost:
		tone = bad
	case HasEnded:
		text += ": " + e.Node.ending()
	}
	for _, key := range slices.Sorted(maps.Keys(e.More)) {
		value := e.More[key]
		if value == nil {
			continue
		}
		switch key {
		case "time", "level", "msg", "token", "id":
		case "why", "err":
			text += fmt.Sprintf(": %v", value)
		default:
			text += fmt.Sprintf("; %s: %v", key, value)
		}
	}
	p.line(e.When, e.Node.actor, e.Token, tone, strings.ReplaceAll(text, "\n", "; "))
}

// claimed prints a claim that has reached the ledger.
func (s *Stage) claimed(a ledger.Attempt) {
	switch {
	case s.NoFence:
		s.now(inLedger, a.Token, plain, "ignores the claim: fencing is off")
	case a.Err != nil:
		s.now(inLedger, a.Token, bad, "REFUSES the claim: %s", reason(a.Err))
	default:
		s.now(inLedger, a.Token, plain, "is claimed: refuses tokens below %v from now on", a.Token)
	}
}

// written prints a write that has reached the ledger: of the writes that are in order only the first of each tenure.
func (s *Stage) written(a ledger.Attempt) {
	e := Event{When: time.Now(), What: Accepts, Token: a.Token}
	if a.Err != nil {
		e.What = Refuses
	}
	defer s.record.add(e) // after printing, so that the next step prints after this
	switch {
	case a.Err != nil:
		s.now(inLedger, a.Token, bad, "REFUSES %s's %v: %s", a.Entry.Writer, a.Entry, reason(a.Err))
	case a.Late:
		s.now(inLedger, a.Token, bad, "ACCEPTS %s's %v: it does not check the token", a.Entry.Writer, a.Entry)
	case count(s.book.Attempts(), a.Token) == 1:
		s.now(inLedger, a.Token, good, "accepts %s's %v", a.Entry.Writer, a.Entry)
	}
}

// reason is a short text for a refusal.
func reason(err error) string {
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		return fmt.Sprintf("%v is older than %v", stale.Token, stale.Highest)
	}
	return err.Error()
}

// count is the number of accepted writes with a token.
func count(writes []ledger.Attempt, token fence.Token) int {
	n := 0
	for _, w := range writes {
		if w.Token == token && w.Err == nil {
			n++
		}
	}
	return n
}
