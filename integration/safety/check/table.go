package check

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Print writes the report as text: the counts, and then the violations with their events.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) } // Flush returns its error
	line("looked at\t")
	line("  time\t%v", r.Span.Round(time.Millisecond))
	for _, c := range r.Counts {
		line("  %s\t%d", c.What, c.N)
	}
	line("  longest time without a holder while somebody waited\t%v", r.Idle.Round(time.Millisecond))
	for _, name := range slices.Sorted(maps.Keys(r.Faults)) {
		line("  fault: %s\t%d", name, r.Faults[name])
	}
	line("violations\t%d", len(r.Violations)+r.More)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("check: print the report: %w", err)
	}
	for _, text := range r.Malformed {
		line("malformed history: %s", text)
	}
	for _, v := range r.Violations {
		line("%s %s: %s (by %s)", v.Invariant, v.Name, v.Text, v.Checker)
		for _, e := range v.Events {
			text, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("check: print the report: %w", err)
			}
			line("    %s", text)
		}
	}
	if r.More > 0 {
		line("and %d more of these", r.More)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("check: print the report: %w", err)
	}
	return nil
}
