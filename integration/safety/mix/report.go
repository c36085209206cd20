package mix

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// The figures of a run, besides those of the checkers.
const (
	faultsMet     = "faults"
	faultOf       = "fault: " // and its kind
	expiries      = "lease expiries"
	leaderChanges = "leader changes"
	staleAuth     = "requests whose auth token had expired"

	rounds        = "rounds"
	revokedEarly  = "leases revoked by a member that no longer led"
	slowestServed = "longest to serve all after a round, ms"
	calmRounds    = "rounds in which a slow commit excuses no failure in peace"
	repeated      = "deletions that arrived twice in peace"
	heap          = "MiB on the heap after the last round"

	restoredBack  = check.OfRestore + "revisions that were lost"
	restoredDown  = check.OfRestore + "time without a cluster, ms"
	restoredAfter = check.OfRestore + "tenures of the next era"
)

// floors are the least figures, so that a run cannot pass by doing nothing. Each kind of fault must have met something.
func floors() map[string]int {
	all := map[string]int{
		faultsMet: 250, check.Granted: 10000,
		check.Accepted: 10000, check.Refused: 100, check.RefusedReaders: 5, check.RefusedForReaders: 5, check.Deadlines: 1000,
		expiries: 50, leaderChanges: 10, staleAuth: 50, check.ControlStale: 1, check.PeerOverlaps: 1, calmRounds: 1, repeated: callers / 2,
		restoredBack: 1, check.LiveAtRestore: 1, check.EndedByRestore: 1, check.ToldOfRestore: 1, check.Explained: 1,
		check.ControlAfter: 1, restoredAfter: 1,
	}
	for verb, least := range map[history.Verb]int{history.RLock: 100, history.SetLock: 50, history.TreeLock: 50, history.Permit: 50} {
		all[check.GrantedAs+string(verb)] = least
	}
	for _, kind := range allKinds() {
		all[faultOf+kind] = 1
	}
	return all
}

// Violation is something that must not happen.
type Violation struct {
	Invariant string // "I1" to "I9", or what the run itself has found: "end", "memory", "history"
	Round     int
	Text      string
}

// Report is what a run has done and found. Its methods are safe for concurrent use.
type Report struct {
	Seed      uint64
	Histories []string // the files that were kept

	mu         sync.Mutex     // guards the fields below
	Counts     map[string]int // by figure; those of the checkers are the sums over all rounds
	Violations []Violation
}

func newReport(seed uint64) *Report {
	return &Report{Seed: seed, Counts: map[string]int{}}
}

func (r *Report) count(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Counts[what] += n
}

func (r *Report) most(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Counts[what] = max(r.Counts[what], n)
}

// strike counts a fault if it has met something.
func (r *Report) strike(kind string, hit bool) {
	if hit {
		r.count(faultsMet, 1)
		r.count(faultOf+kind, 1)
	}
}

// judge adds what the checkers have found in the history of a round.
func (r *Report) judge(round int, verdict check.Report) {
	for _, v := range verdict.Violations {
		r.violate(round, v.Invariant, "%s: %s (found by %s)", v.Name, v.Text, v.Checker)
	}
	for figure, n := range verdict.Counts {
		r.count(figure, n)
	}
}

func (r *Report) violate(round int, invariant, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Violations = append(r.Violations, Violation{invariant, round, fmt.Sprintf(format, args...)})
}

func (r *Report) violations() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Violations)
}

func (r *Report) line() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := new(strings.Builder)
	fmt.Fprintf(text, "round %d:", r.Counts[rounds])
	for _, what := range []string{faultsMet, check.Granted, check.Accepted, check.Refused, expiries, leaderChanges} {
		fmt.Fprintf(text, " %d %s,", r.Counts[what], what)
	}
	fmt.Fprintf(text, " %d violations", len(r.Violations))
	return text.String()
}

// Missed returns which floors the run has not reached.
func (r *Report) Missed() (missed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	floors := floors()
	for _, what := range slices.Sorted(maps.Keys(floors)) {
		if n := r.Counts[what]; n < floors[what] {
			missed = append(missed, fmt.Sprintf("%s: %d, want %d or more", what, n, floors[what]))
		}
	}
	return missed
}

// String returns the report as a table.
func (r *Report) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n\n", r.Seed)
	floors := floors()
	all := maps.Clone(floors)
	maps.Copy(all, r.Counts)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%-75s %8d", what, r.Counts[what])
		if floor, ok := floors[what]; ok {
			fmt.Fprintf(&b, "   floor %d", floor)
		}
		b.WriteByte('\n')
	}
	found := map[string]int{}
	for _, v := range r.Violations {
		found[v.Invariant]++
	}
	fmt.Fprintf(&b, "\nviolations: %d\n", len(r.Violations))
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
