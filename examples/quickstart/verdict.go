package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// verdict is what the run has shown.
type verdict struct {
	ok     bool     // the stale write was sent and refused, and the ledger is intact
	lines  []string // the ledger
	result string
	why    string
}

// judge goes by what etcd has issued, the tokens, and by what has reached the ledger: a is the token of the worker
// that was paused, b that of its successor. What the workers say of themselves does not count.
func judge(ctx context.Context, a, b fence.Token, l *ledger.Ledger) (verdict, error) {
	entries, err := l.Entries(ctx)
	if err != nil {
		return verdict{}, err
	}
	damage := ledger.Inspect(entries)
	v := verdict{lines: describe(entries)}

	stale, sent := staleWrite(a, b, l.Attempts())
	refusal, _ := errors.AsType[*fence.StaleError](stale.Err)
	switch {
	case !sent:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("no write with the token %v has reached the ledger after one with %v.", a, b)
	case stale.Err == nil && damage != nil:
		v.result = "CORRUPTED:"
		v.why = fmt.Sprintf("the stale write (token %v) was accepted after token %v.\n%v.", a, b, damage)
	case stale.Err == nil:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("the stale write (token %v) was accepted after token %v.", a, b)
	case damage != nil:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("the stale write was refused, but the ledger is not intact: %v.", damage)
	case refusal == nil || refusal.Highest != b:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("the write was refused for another reason than token %v: %v.", b, stale.Err)
	default:
		v.ok = true
		v.result = "REFUSED:"
		v.why = fmt.Sprintf("the stale write (token %v) reached the ledger and was refused: highest seen is %v.\n"+
			"The ledger is intact: every entry continues the one before it.", refusal.Token, refusal.Highest)
	}
	if !l.Fenced() {
		v.why += "\nFencing is off (-no-fence): the lock alone did not prevent it. Run it without the flag to compare."
	}
	return v, nil
}

// staleWrite finds the first write with the token a that came to the ledger after it had accepted one with b.
func staleWrite(a, b fence.Token, attempts []ledger.Attempt) (ledger.Attempt, bool) {
	successor := false
	for _, t := range attempts {
		if successor && t.Token == a && a < b {
			return t, true
		}
		successor = successor || t.Token == b && t.Err == nil
	}
	return ledger.Attempt{}, false
}

// describe lists the ledger, an entry a line.
func describe(entries []ledger.Attempt) []string {
	var lines []string
	highest := fence.Token(0)
	for _, a := range entries {
		line := fmt.Sprintf("#%d  %+4d  balance %3d   by %s, token %v", a.Entry.Seq, a.Entry.Amount, a.Entry.Balance, a.Entry.Writer, a.Token)
		if a.Token < highest {
			line += fmt.Sprintf("   <-- stale: token %v was here first", highest)
		}
		highest = max(highest, a.Token)
		lines = append(lines, line)
	}
	return lines
}

// print concludes the timeline.
func (v verdict) print(tl *timeline.Timeline) {
	tone := timeline.Bad
	if v.ok {
		tone = timeline.Best
	}
	tl.Note(timeline.Plain, "\nThe ledger at the end")
	for _, line := range v.lines {
		tl.Note(timeline.Plain, "    "+line)
	}
	tl.Note(timeline.Plain, "\n"+tl.Paint(tone, v.result)+" "+v.why)
}
