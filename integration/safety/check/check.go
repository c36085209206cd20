package check

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// Violation is one breach of an invariant.
type Violation struct {
	Invariant string // "I1" to "I9", or "history": no run can have written this
	Checker   string // that found it
	Name      string // of the lock, election or resource
	Text      string
	Events    []history.Event // the evidence
}

// Report is the result of all checkers.
type Report struct {
	Violations []Violation
	Counts     map[string]int // what the checkers looked at; a 0 shows that a checker had nothing to check
}

// Names of Counts.
const (
	Granted           = "granted"
	GrantedAs         = "granted: " // and the Verb, or "lock" for none
	Accepted          = "accepted updates"
	Refused           = "stale updates refused"
	RefusedForReaders = "stale updates refused by a reader's token" // they count as Refused too
	RefusedReaders    = "stale requests of readers refused"
	refusedOthers     = "stale claims and reads of writers refused"
	Unknown           = "requests of unknown outcome"
	Excused           = "failures in peace that a slow commit excuses"
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

// counted are the counts that every report has. Others have a part that depends on the history.
var counted = []string{
	"events", Granted, "requests", Unknown, Unknown + " that were applied",
	Accepted, Refused, RefusedForReaders, RefusedReaders, refusedOthers, "accepted claims", "accepted claims and reads of readers", "reads",
	"updates of unfenced controls", "updates of unfenced controls that undid another", ControlStale, PeerOverlaps, Excused,
	"changes seen by the watch", "keys created", "keys left at the end", "keys taken by operators", "handles that lost their key to an operator",
	"tokens compared with the watch", "tokens beyond the end of the watch", "deletions compared with handles",
	"live intervals compared", Deadlines, "functions compared with the deletion of their keys",
	"acquisitions that waited", "waiters compared with others of their session", "waiters that look overtaken",
	"changes seen by observers", "changes of leaders compared with observers",
	RefusedAfter, ControlAfter, ToldOfRestore, Explained, LiveAtRestore, EndedByRestore, ToldAtEnd,
}

// Print writes the report as text: the counts, and then the violations with their events. The caller sees an error of
// the last write only.
func (r *Report) Print(w io.Writer) (err error) {
	line := func(format string, args ...any) { _, err = fmt.Fprintf(w, format+"\n", args...) }
	for _, what := range slices.Sorted(maps.Keys(r.Counts)) {
		line("%9d %s", r.Counts[what], what)
	}
	line("violations: %d", len(r.Violations))
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
	c := &checker{now: "book", n: map[string]int{}}
	for _, what := range counted {
		c.n[what] = 0
	}
	c.report.Counts = c.n
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
		{"watch", c.each(c.watched)},
		{"watch", c.each(c.deleted)},
		{"watch", c.each(c.deletedWaiting)},
		{"watch", c.leftovers},
		{"intervals", c.each(c.slot)},
		{"intervals", c.each(c.afterlife)},
		{"intervals", c.intervals},
		{"release", c.each(c.loud)},
		{"release", c.each(c.returned)},
		{"deadline", c.leaseEnds},
		{"deadline", c.each(c.deadline)},
		{"operator", c.each(c.prompt)},
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
	n      map[string]int // the Counts of the report
	now    string         // the checker that looks
	*book
}

// each makes a checker of a rule for single acquisitions.
func (c *checker) each(rule func(*acquisition)) func() {
	return func() {
		for _, a := range c.ops {
			rule(a)
		}
	}
}

// bad reports a violation. The events are the evidence.
func (c *checker) bad(invariant, name string, events []history.Event, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, Violation{invariant, c.now, name, fmt.Sprintf(format, args...), events})
}

func (c *checker) malformed(format string, args ...any) { c.bad("history", "", nil, format, args...) }

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
