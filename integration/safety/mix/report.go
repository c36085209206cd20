package mix

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is what a run has done and found.
type Report struct {
	Seed       uint64            `json:"seed"`
	TTL        time.Duration     `json:"ttl"`
	Duration   time.Duration     `json:"duration"`
	Counts     Counts            `json:"counts"`
	Faults     map[string]Struck `json:"faults"` // by kind
	Violations []Violation       `json:"violations"`
	More       int               `json:"more,omitempty"` // violations beyond the first 100
	Peer       *Peer             `json:"peer,omitempty"`
	Restored   *Restored         `json:"restored,omitempty"`
	Histories  []string          `json:"-"` // the files that were kept
}

// Counts are the sums of a run.
type Counts struct {
	Rounds         int           `json:"rounds"`
	Events         int           `json:"events"`
	Faults         int           `json:"faults"` // faults that met something
	Acquisitions   int           `json:"acquisitions"`
	GaveUp         int           `json:"gaveUp"` // acquisitions that failed, or found the name locked
	Writes         int           `json:"writes"`
	Refused        int           `json:"refused"` // stale writes
	Shared         int           `json:"shared"`  // acquisitions of readers
	Sets           int           `json:"sets"`    // acquisitions of several locks at once
	Trees          int           `json:"trees"`   // of nodes of trees
	Permits        int           `json:"permits"`
	StaleReads     int           `json:"staleReads"`    // claims and reads of readers that were refused
	StaleByReader  int           `json:"staleByReader"` // stale writes refused only because of a reader's claim
	Unknown        int           `json:"unknown"`       // requests without an answer
	Expiries       int           `json:"expiries"`
	LeaderChanges  int           `json:"leaderChanges"`
	RevokedEarly   int           `json:"revokedEarly"` // leases that members revoked which had been paused and no longer led
	StaleAuth      int           `json:"staleAuth"`    // requests and watches whose auth token had expired, or was lost in a restart
	ControlStale   int           `json:"controlStale"` // writes with a stale token that the unfenced control has accepted
	Stalls         int           `json:"stalls"`       // times in which this process did not run for more than 250 ms
	LongestStall   time.Duration `json:"longestStall"`
	SlowCommits    int           `json:"slowCommits"` // of a plain client, above 250 ms, after all faults were healed
	LongestCommit  time.Duration `json:"longestCommit"`
	SlowestToServe time.Duration `json:"slowestToServe"` // the longest time to serve all waiters after a round
	Heap           uint64        `json:"heap"`           // after the last round
	Restores       int           `json:"restores"`       // from a snapshot, if noticed in each possible way
}

// Violation is something that must not happen.
type Violation struct {
	Invariant string `json:"invariant"` // "I1" to "I9", or what the run itself has found: "end", "memory", "history"
	Round     int    `json:"round,omitempty"`
	Text      string `json:"text"`
	History   string `json:"history,omitempty"` // where to look
}

func newReport(o Options) *Report {
	return &Report{Seed: o.Seed, TTL: o.TTL, Faults: map[string]Struck{}}
}

func (r *Report) violate(v Violation) {
	const most = 100
	if len(r.Violations) == most {
		r.More++
		return
	}
	r.Violations = append(r.Violations, v)
}

// line returns the totals until now.
func (r *Report) line() string {
	c := r.Counts
	return fmt.Sprintf("%8s  round %d: %d faults, %d acquisitions, %d writes, %d refused, %d expiries, %d leader changes, %d violations",
		r.Duration.Round(time.Second), c.Rounds, c.Faults, c.Acquisitions, c.Writes, c.Refused, c.Expiries, c.LeaderChanges,
		len(r.Violations)+r.More)
}

// Floor is a minimum for one of the Counts, so that a run cannot pass by doing nothing.
type Floor struct {
	What  string
	Least int
	Of    func(*Counts) *int // the count
}

// Floors returns the floors of a short run.
func Floors() []Floor {
	return []Floor{
		{"faults", 250, func(c *Counts) *int { return &c.Faults }},
		{"acquisitions", 10000, func(c *Counts) *int { return &c.Acquisitions }},
		{"fenced writes", 10000, func(c *Counts) *int { return &c.Writes }},
		{"stale writes refused", 100, func(c *Counts) *int { return &c.Refused }},
		{"read locks", 100, func(c *Counts) *int { return &c.Shared }},
		{"sets of locks", 50, func(c *Counts) *int { return &c.Sets }},
		{"nodes of trees", 50, func(c *Counts) *int { return &c.Trees }},
		{"permits", 50, func(c *Counts) *int { return &c.Permits }},
		{"stale requests of readers refused", 5, func(c *Counts) *int { return &c.StaleReads }},
		{"stale writes refused after a reader's claim", 5, func(c *Counts) *int { return &c.StaleByReader }},
		{"lease expiries", 50, func(c *Counts) *int { return &c.Expiries }},
		{"leader changes", 10, func(c *Counts) *int { return &c.LeaderChanges }},
		{"requests whose auth token had expired", 50, func(c *Counts) *int { return &c.StaleAuth }},
		{"stale writes taken by the unfenced control", 1, func(c *Counts) *int { return &c.ControlStale }},
		{"restores from a snapshot", 1, func(c *Counts) *int { return &c.Restores }},
	}
}

// Missed returns what the run lacks: floors that it has not reached, kinds of faults that never met anything, and harm
// to the peer, if the peer ran.
func (r *Report) Missed(floors []Floor) []string {
	var missed []string
	for _, f := range floors {
		if n := *f.Of(&r.Counts); n < f.Least {
			missed = append(missed, fmt.Sprintf("%s: %d, want %d or more", f.What, n, f.Least))
		}
	}
	for _, kind := range AllKinds() {
		if r.Faults[kind].Fired == 0 {
			missed = append(missed, fmt.Sprintf("fault %q: never fired", kind))
		}
	}
	if r.Peer != nil && r.Peer.harmed() == 0 {
		missed = append(missed, "the peer: no harm done to it")
	}
	return missed
}

// invariants are what a run checks, in the order of the report.
var invariants = []string{"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "end", "memory", "history"}

// row is a line of a part of the report.
type row struct {
	what string
	n    any
}

// table formats rows.
func table(format string, rows []row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, format, r.what, r.n)
	}
	return b.String()
}

// String returns the report as a table.
func (r *Report) String() string {
	var b strings.Builder
	c := r.Counts
	fmt.Fprintf(&b, "seed %d, TTL %v, %v, %d rounds, %d events\n\n", r.Seed, r.TTL, r.Duration.Round(time.Second), c.Rounds, c.Events)
	for _, f := range Floors() {
		fmt.Fprintf(&b, "%-45s %8d   floor %d\n", f.What, *f.Of(&c), f.Least)
	}
	b.WriteString(table("%-45s %8v\n", []row{
		{"acquisitions that failed, or found it locked", c.GaveUp},
		{"requests of unknown outcome", c.Unknown},
		{"leases revoked by a member that no longer led", c.RevokedEarly},
		{"longest to serve all after a round", c.SlowestToServe.Round(time.Millisecond)},
		{"stalls of this process above 250 ms", c.Stalls},
		{"  the longest", c.LongestStall.Round(time.Millisecond)},
		{"slow commits of a plain client in peace", c.SlowCommits},
		{"  the longest", c.LongestCommit.Round(time.Millisecond)},
		{"MiB on the heap after the last round", c.Heap >> 20},
	}))
	b.WriteString("\nfault                          fired  met nothing\n")
	for _, kind := range AllKinds() {
		s := r.Faults[kind]
		fmt.Fprintf(&b, "%-30s %5d  %5d\n", kind, s.Fired, s.Missed)
	}
	if r.Peer != nil {
		b.WriteString("\n" + r.Peer.String())
	}
	if r.Restored != nil {
		b.WriteString("\n" + r.Restored.String())
	}
	b.WriteString("\nviolations\n")
	found := map[string]int{}
	for _, v := range r.Violations {
		found[v.Invariant]++
	}
	for _, i := range invariants {
		fmt.Fprintf(&b, "  %-8s %d\n", i, found[i])
		delete(found, i)
	}
	for _, i := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&b, "  %-8s %d\n", i, found[i])
	}
	shown := slices.Clone(r.Violations)
	slices.SortStableFunc(shown, func(x, y Violation) int { return cmp.Compare(x.Invariant, y.Invariant) })
	for _, v := range shown[:min(len(shown), 20)] {
		fmt.Fprintf(&b, "%s, round %d: %s\n", v.Invariant, v.Round, v.Text)
	}
	return b.String()
}
