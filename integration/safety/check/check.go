package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// Violation is one breach of an invariant.
type Violation struct {
	Invariant string // "I1" to "I9"
	Checker   string // that found it
	Name      string // of the lock, election or resource
	Text      string
	Events    []history.Event // the evidence
}

// Count is a number of things that a checker looked at. A count of 0 shows that a checker had nothing to check.
type Count struct {
	What string
	N    int
}

// Report is the result of all checkers.
type Report struct {
	Violations []Violation
	More       int      // violations beyond the first 20 of each checker and invariant
	Malformed  []string // why no run can have written this history; at most 20 reasons
	Counts     []Count
}

// Lines of Counts, or what they begin with.
const (
	Granted           = "granted"     // and the Verb, or "lock" for none
	NotGranted        = "not granted" // and the Outcome
	Accepted          = "accepted updates"
	Refused           = "stale updates refused"
	RefusedForReaders = Refused + " by a reader's token"
	RefusedReaders    = "stale requests of readers refused"
	refusedOthers     = "stale claims and reads of writers refused"
	Unknown           = "requests of unknown outcome"
	Deadlines         = "handles compared with the deadlines of their leases"
	ControlStale      = "stale updates of unfenced controls"
	PeerOverlaps      = "holders of etcd's own mutex, the control, at the next one's grant"

	OfRestore      = "restored: "
	RefusedAfter   = OfRestore + "tokens refused as stale after it"
	ControlAfter   = OfRestore + "stale updates of unfenced controls after it"
	ToldOfRestore  = OfRestore + "acquisitions whose errors report it"
	Explained      = OfRestore + "refusals that it explains"
	LiveAtRestore  = OfRestore + "handles that were live"
	EndedByRestore = OfRestore + "live handles that were lost"
	ToldAtEnd      = OfRestore + "live handles whose loss reports it"
)

// Count returns the sum of the lines of Counts that begin with that text.
func (r *Report) Count(what string) (n int) {
	for _, c := range r.Counts {
		if strings.HasPrefix(c.What, what) {
			n += c.N
		}
	}
	return n
}

// Print writes the report as text: the counts, and then the violations with their events. The caller sees an error of
// the last write only.
func (r *Report) Print(w io.Writer) (err error) {
	line := func(format string, args ...any) { _, err = fmt.Fprintf(w, format+"\n", args...) }
	for _, c := range r.Counts {
		line("%9d %s", c.N, c.What)
	}
	line("violations: %d", len(r.Violations)+r.More)
	for _, text := range r.Malformed {
		line("malformed history: %s", text)
	}
	for _, v := range r.Violations {
		line("%s %s: %s (by %s)", v.Invariant, v.Name, v.Text, v.Checker)
		for _, e := range v.Events {
			text, _ := json.Marshal(e) // an event has nothing that cannot be marshaled
			line("    %s", text)
		}
	}
	return err
}

// Check runs all checkers on a history. The events are in the order of the file and are not changed. A restore takes
// revisions back, so in a history with a restore only the checkers that look at no revision run.
func Check(events []history.Event) Report {
	c := &checker{kept: map[string]int{}}
	c.book = c.newBook(events)
	for _, one := range []struct {
		name string
		look func()
	}{
		{"resource", c.resource},
		{"requests", c.requestOutcomes},
		{"restore", c.restores},
		{"watch", c.readWatch},
		{"operator", c.excuse},
		{"watch", c.watchedTokens},
		{"watch", c.deletions},
		{"watch", c.leftovers},
		{"intervals", c.intervals},
		{"release", c.returns},
		{"deadline", c.deadlines},
		{"operator", c.prompt},
		{"progress", c.progress},
		{"order", c.order},
		{"observers", c.observers},
	} {
		if one.name == "watch" && c.restored < forever {
			break
		}
		c.now = one.name
		one.look()
	}
	return c.report
}

type checker struct {
	ttl    time.Duration // the longest that was granted; 0: not known, so waiting times and deadlines are not judged
	report Report
	now    string         // the checker that looks
	kept   map[string]int // violations, by checker and invariant
	*book
}

const most = 20

// bad reports a violation. The events are the evidence.
func (c *checker) bad(invariant, name string, events []history.Event, format string, args ...any) {
	class := c.now + invariant
	if c.kept[class]++; c.kept[class] > most {
		c.report.More++
		return
	}
	c.report.Violations = append(c.report.Violations, Violation{invariant, c.now, name, fmt.Sprintf(format, args...), events})
}

func (c *checker) malformed(format string, args ...any) {
	if len(c.report.Malformed) < most {
		c.report.Malformed = append(c.report.Malformed, fmt.Sprintf(format, args...))
	}
}

func (c *checker) count(what string, n int) {
	c.report.Counts = append(c.report.Counts, Count{what, n})
}

// show collects the events of a violation. Nil ones are left out.
func show(events ...*history.Event) []history.Event {
	var all []history.Event
	for _, e := range events {
		if e != nil {
			all = append(all, *e)
		}
	}
	return all
}
