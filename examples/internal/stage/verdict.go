//go:build unix

package stage

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"
)

// errChecks means that a check has failed; the summary says which.
var errChecks = errors.New("a check has failed")

// tenure is the time for which a process led or held the lock: until it logged the end, or was stopped, or had ended.
type tenure struct {
	id          string
	token       fence.Token
	from, until time.Time
	end         string
}

// tenures returns the tenures in the order in which they began.
func tenures(events []Event) []tenure {
	slices.SortStableFunc(events, func(a, b Event) int { return a.When.Compare(b.When) })
	var all []tenure
	last := map[*Process]int{} // the place of each process's last tenure
	for _, e := range events {
		switch n, found := last[e.Node]; {
		case e.begins():
			last[e.Node] = len(all)
			all = append(all, tenure{id: e.Node.ID, token: e.Token, from: e.When})
		case found && e.ends() && all[n].end == "":
			all[n].until, all[n].end = e.When, e.What
			if e.What == HasEnded {
				all[n].end = e.Node.ending()
			}
		}
	}
	return all
}

// check is one line of the summary.
type check struct {
	err error  // nil: the check has passed
	so  string // what it has shown then
}

// judge checks the tenures, and the writes that have reached the ledger. One of these has to be stale.
func judge(all []tenure, entries, attempts []ledger.Attempt) []check {
	stale := 0
	var accepted error
	for _, a := range attempts {
		if !a.Late && !errors.Is(a.Err, fence.ErrStale) {
			continue
		}
		stale++
		if a.Err == nil {
			accepted = errors.Join(accepted, fmt.Errorf("%s's %v with token %v was accepted after a larger token", a.Entry.Writer, a.Entry, a.Token))
		}
	}
	if stale == 0 {
		accepted = errors.New("no stale write has reached the ledger")
	}
	return []check{
		{alone(all), fmt.Sprintf("never two holders at a time, and each with a larger token: %d", len(all))},
		{accepted, fmt.Sprintf("no stale write accepted: %d sent, all refused", stale)},
		{ledger.Inspect(entries), fmt.Sprintf("the ledger is intact: each of %d entries continues the one before it", len(entries))},
	}
}

// alone returns an error if tenures overlap or their tokens do not grow.
func alone(all []tenure) error {
	if len(all) == 0 {
		return errors.New("nobody has led, or held the lock")
	}
	for i, r := range all[1:] {
		before := all[i]
		switch {
		case before.end == "" || before.until.After(r.from):
			return fmt.Errorf("%s still held with token %v when %s began with token %v", before.id, before.token, r.id, r.token)
		case before.token >= r.token:
			return fmt.Errorf("%s's token %v is followed by %s's %v", before.id, before.token, r.id, r.token)
		}
	}
	return nil
}

// conclude prints the summary.
func (s *Stage) conclude() error {
	all := tenures(s.record.all())
	entries, err := s.book.Entries(s.Context)
	if err != nil {
		return err
	}
	s.note(plain, "\nThe holders")
	for _, r := range all {
		s.note(plain, "    %s  token %4v  %6.3fs  writes: %-3d  %s", r.id, r.token, r.until.Sub(r.from).Seconds(), count(entries, r.token), r.end)
	}
	s.note(plain, "\nThe ledger")
	for _, a := range entries {
		e := a.Entry
		s.note(plain, "    #%d  %+4d  balance %3d   by %s, token %v", e.Seq, e.Amount, e.Balance, e.Writer, a.Token)
	}
	s.note(plain, "\nThe checks")
	var failed error
	for _, c := range judge(all, entries, s.book.Attempts()) {
		if c.err != nil {
			failed = errChecks
			s.note(bad, "    FAILED  %s", c.err)
		} else {
			s.note(good, "    ok      %s", c.so)
		}
	}
	if s.NoFence {
		s.note(plain, "Fencing is off (-no-fence): the lock alone cannot prevent a late write. Compare without the flag.")
	}
	return failed
}
