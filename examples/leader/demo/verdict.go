//go:build unix

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// errChecks says that the summary tells what is wrong.
var errChecks = errors.New("a check has failed")

// reign is the time for which a process led: until it said so, or could not do anything any more.
type reign struct {
	id          string
	token       fence.Token
	from, until time.Time
	end         string
}

// reigns finds them, in the order in which they began.
func reigns(events []event) []reign {
	var all []reign
	for _, e := range events {
		if e.node == nil || e.what != leads {
			continue
		}
		r := reign{id: e.node.id, token: e.token, from: e.when}
		for _, end := range events {
			ends := end.what == leadsNoMore && end.token == e.token || end.what == hasStopped || end.what == hasEnded
			if end.node == e.node && ends && end.when.After(e.when) && (r.end == "" || end.when.Before(r.until)) {
				r.until, r.end = end.when, end.what
				if end.what == hasEnded {
					r.end = end.node.ending()
				}
			}
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b reign) int { return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.token, b.token)) })
	return all
}

// check is one line of the summary.
type check struct {
	err error // nil: it is so
	so  string
}

// judge goes by when who led, and by what has reached the ledger. If a stale write was sent on purpose, one must have
// been.
func judge(all []reign, entries, attempts []ledger.Attempt, sent bool) []check {
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
	if stale == 0 && sent {
		accepted = errors.New("none has reached the ledger")
	}
	sum := "none was sent"
	if stale > 0 {
		sum = fmt.Sprintf("%d sent, all refused", stale)
	}
	return []check{
		{alone(all), fmt.Sprintf("never two leaders at a time, and each with a larger token: %d", len(all))},
		{accepted, "no stale write accepted: " + sum},
		{ledger.Inspect(entries), fmt.Sprintf("the ledger is intact: each of %d entries continues the one before it", len(entries))},
	}
}

// alone returns what is wrong with the reigns.
func alone(all []reign) error {
	if len(all) == 0 {
		return errors.New("nobody has led")
	}
	for i, r := range all[1:] {
		before := all[i]
		switch {
		case before.end == "" || before.until.After(r.from):
			return fmt.Errorf("%s led with token %v when %s began to, with token %v", before.id, before.token, r.id, r.token)
		case before.token >= r.token:
			return fmt.Errorf("%s's token %v is followed by %s's %v", before.id, before.token, r.id, r.token)
		}
	}
	return nil
}

// conclude prints the summary.
func (s *stage) conclude(ctx context.Context) error {
	all := reigns(s.record.all())
	entries, err := s.book.Entries(ctx)
	if err != nil {
		return err
	}
	s.tl.Note(timeline.Plain, "\nThe leaders")
	for _, r := range all {
		s.tl.Note(timeline.Plain, fmt.Sprintf("    %s  token %4v  %6.3fs  writes: %-3d  %s", r.id, r.token,
			r.until.Sub(r.from).Seconds(), count(entries, r.token), r.end))
	}
	s.tl.Note(timeline.Plain, "\nThe checks")
	var failed error
	for _, c := range judge(all, entries, s.book.Attempts(), !s.opts.Manual) {
		if c.err != nil {
			failed = errChecks
			s.tl.Note(timeline.Bad, "    FAILED  "+c.err.Error())
		} else {
			s.tl.Note(timeline.Good, "    ok      "+c.so)
		}
	}
	if s.opts.NoFence {
		s.tl.Note(timeline.Plain, "Fencing is off (-no-fence): the election alone does not prevent a late write. Run it without the flag to compare.")
	}
	return failed
}
