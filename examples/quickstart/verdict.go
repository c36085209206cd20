package main

import (
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// verdict is what the run has shown.
type verdict struct {
	ok     bool // the stale write was sent and refused, and the ledger is intact
	ledger []string
	result string
	why    string
}

// judge goes by what etcd has issued, the tokens, and by what has reached the ledger: a is the token of the worker
// that was paused, b that of its successor. What the workers say of themselves does not count.
func judge(a, b fence.Token, l *ledger) verdict {
	entries, attempts := l.history()
	damage := inspect(entries)
	v := verdict{ledger: describe(entries)}

	stale, sent := staleWrite(a, b, attempts)
	refusal, _ := errors.AsType[*fence.StaleError](stale.err)
	switch {
	case !sent:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("no write with the token %v has reached the ledger after one with %v.", a, b)
	case stale.err == nil && damage != nil:
		v.result = "CORRUPTED:"
		v.why = fmt.Sprintf("the stale write (token %v) was accepted after token %v.\n%v.", a, b, damage)
	case stale.err == nil:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("the stale write (token %v) was accepted after token %v.", a, b)
	case damage != nil:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("the stale write was refused, but the ledger is not intact: %v.", damage)
	case refusal == nil || refusal.Highest != b:
		v.result = "FAILED:"
		v.why = fmt.Sprintf("the write was refused for another reason than token %v: %v.", b, stale.err)
	default:
		v.ok = true
		v.result = "REFUSED:"
		v.why = fmt.Sprintf("the stale write (token %v) reached the ledger and was refused: highest seen is %v.\n"+
			"The ledger is intact: every entry continues the one before it.", refusal.Token, refusal.Highest)
	}
	if !l.fenced {
		v.why += "\nFencing is off (-no-fence): the lock alone did not prevent it. Run it without the flag to compare."
	}
	return v
}

// staleWrite finds the first write with the token a that came to the ledger after it had accepted one with b.
func staleWrite(a, b fence.Token, attempts []attempt) (attempt, bool) {
	successor := false
	for _, t := range attempts {
		if successor && t.token == a && a < b {
			return t, true
		}
		successor = successor || t.token == b && t.err == nil
	}
	return attempt{}, false
}

// inspect returns what is wrong with the ledger: an entry that does not continue the one before it.
func inspect(entries []attempt) error {
	var last entry
	for _, a := range entries {
		e := a.entry
		if e.Seq != last.Seq+1 || e.Balance != last.Balance+e.Amount {
			return fmt.Errorf("%s wrote #%d without having seen %s's #%d: the balance says %d, the amounts add up to %d",
				e.Writer, e.Seq, last.Writer, last.Seq, e.Balance, last.Balance+e.Amount)
		}
		last = e
	}
	return nil
}

// describe lists the ledger, an entry a line.
func describe(entries []attempt) []string {
	var lines []string
	highest := fence.Token(0)
	for _, a := range entries {
		line := fmt.Sprintf("#%d  %+4d  balance %3d   by %s, token %v", a.entry.Seq, a.entry.Amount, a.entry.Balance, a.entry.Writer, a.token)
		if a.token < highest {
			line += fmt.Sprintf("   <-- stale: token %v was here first", highest)
		}
		highest = max(highest, a.token)
		lines = append(lines, line)
	}
	return lines
}
