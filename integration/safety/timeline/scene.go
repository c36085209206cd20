package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// how an interval ends.
type ending int

const (
	open     ending = iota // it goes on beyond the history
	released               // on purpose
	lost
	killed
	gaveUp
)

// bar is an interval in which an actor waited for a name or held it.
type bar struct {
	from, to time.Duration
	sure     time.Duration // until when it is known; from then to the end it is not
	actor    string
	name     string
	token    fence.Token // 0: it waited
	shared   bool        // as a reader
	ending   ending
	why      string
}

// mark is a request at the time at which the resource has applied or refused it.
type mark struct {
	at      time.Duration
	actor   string
	name    string
	token   fence.Token
	refused bool
	verb    history.Verb
	n       int // how many it stands for
}

// fault is an interval in which one was on.
type fault struct {
	from, to     time.Duration
	name, target string
}

// sight is what an observer saw.
type sight struct {
	at          time.Duration
	actor, name string
	token       fence.Token
}

// scene is what there is to draw.
type scene struct {
	from, to  time.Duration // all of it
	waits     []bar
	holds     []bar
	marks     []mark
	faults    []fault
	sights    []sight
	elections map[string]bool
}

// acquisition joins the events of one Op.
type acquisition struct {
	enter, grant, giveUp, lost, release *history.Event
	live, last                          time.Duration // the last live event, the last of all
}

// newScene reads a history. Names, if there are any, are the only ones that count.
func newScene(events []history.Event, names []string) *scene {
	s := &scene{from: 1<<63 - 1, elections: map[string]bool{}}
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	ops, senders, faults := map[int64]*acquisition{}, map[int64]string{}, map[int64]int{}
	var order []*acquisition
	for n := range events {
		e := &events[n]
		s.from, s.to = min(s.from, e.At), max(s.to, e.At)
		switch e.Kind {
		case history.Enter:
			if wanted(e.Name) {
				ops[e.Op] = &acquisition{enter: e}
				order = append(order, ops[e.Op])
				s.elections[e.Name] = s.elections[e.Name] || e.Verb == history.Campaign
			}
		case history.Grant, history.GiveUp, history.Live, history.Lost, history.Release:
			if a := ops[e.Op]; a != nil {
				a.add(e)
			}
		case history.Send:
			senders[e.Request] = e.Actor
		case history.Apply:
			s.apply(e, senders[e.Request], wanted(e.Name))
		case history.Observe:
			if wanted(e.Name) {
				s.elections[e.Name] = true
				s.sights = append(s.sights, sight{e.At, e.Actor, e.Name, e.Token})
			}
		case history.Fault:
			faults[e.Fault] = len(s.faults)
			s.faults = append(s.faults, fault{e.At, -1, e.Name, e.Target})
		case history.Heal:
			if k, on := faults[e.Fault]; on {
				s.faults[k].to = e.At
			}
		default:
		}
	}
	for n := range s.faults {
		if f := &s.faults[n]; f.to < 0 {
			if f.to = s.to; f.name == history.ClientKilled {
				f.to = f.from
			}
		}
	}
	for _, a := range order {
		s.acquire(a)
	}
	slices.SortStableFunc(s.marks, func(x, y mark) int { return cmp.Compare(x.at, y.at) })
	return s
}

func (a *acquisition) add(e *history.Event) {
	a.last = max(a.last, e.At)
	switch e.Kind {
	case history.Grant:
		a.grant = e
	case history.GiveUp:
		a.giveUp = e
	case history.Lost:
		a.lost = e
	case history.Release:
		a.release = e
	case history.Live:
		a.live = max(a.live, e.At)
	default:
	}
}

// apply notes what a resource has done with a request of an actor.
func (s *scene) apply(e *history.Event, sender string, wanted bool) {
	if !wanted || sender == "" || e.Verb == history.Read ||
		e.Verb == history.CheckRead && e.Outcome == history.OK || e.Outcome != history.OK && e.Outcome != history.Refused {
		return
	}
	s.marks = append(s.marks, mark{e.At, sender, e.Name, e.Token, e.Outcome == history.Refused, e.Verb, 1})
}

// acquire notes the two intervals of an acquisition.
func (s *scene) acquire(a *acquisition) {
	e := a.enter
	wait := bar{from: e.At, actor: e.Actor, name: e.Name, shared: e.Verb.Shared()}
	if a.grant == nil {
		switch {
		case a.giveUp != nil:
			wait.to, wait.ending, wait.why = a.giveUp.At, gaveUp, a.giveUp.Error
		default:
			wait.to, wait.ending = s.end(e, e.At)
		}
		s.waits = append(s.waits, wait)
		return
	}
	wait.to, wait.ending = a.grant.At, released
	s.waits = append(s.waits, wait)
	name := e.Name
	if e.Verb.OfPermit() {
		name = a.grant.Name // the slot
	}
	hold := bar{from: a.grant.At, actor: e.Actor, name: name, token: a.grant.Token, shared: wait.shared}
	switch {
	case a.lost != nil && (a.release == nil || a.lost.At < a.release.At):
		hold.to, hold.ending, hold.why = a.lost.At, lost, a.lost.Error
	case a.release != nil: // the handle ends when Unlock is called, before the next one is let in
		hold.to, hold.ending = a.release.At, released
	default:
		hold.to, hold.ending = s.end(e, a.last)
	}
	hold.to = max(hold.to, hold.from)
	hold.sure = hold.to
	if hold.ending == lost || hold.ending == killed {
		hold.sure = min(max(a.live, hold.from), hold.to) // a process that is stopped is told late
	}
	s.holds = append(s.holds, hold)
}

// end is that of an interval of which nothing more is known after last: its process was killed, or the history ends.
func (s *scene) end(e *history.Event, last time.Duration) (time.Duration, ending) {
	for _, f := range s.faults {
		if f.name == history.ClientKilled && f.target == e.Client() && f.to >= last {
			return max(f.from, last), killed
		}
	}
	return s.to, open
}

// tell is what the browser shows of a bar.
func (b bar) tell() string {
	verb, end := "waited for", ""
	if b.token != 0 {
		verb = "held"
	}
	switch b.ending {
	case lost:
		end = ", lost"
	case killed:
		end = ", killed"
	case gaveUp:
		end = ", gave up"
	case open, released:
	}
	as := ""
	if b.shared {
		as = " as a reader"
	}
	text := fmt.Sprintf("%s %s %s%s, %v to %v%s", b.actor, verb, b.name, as, round(b.from), round(b.to), end)
	if b.token != 0 {
		text += fmt.Sprintf("\ntoken %d", b.token)
	}
	if b.why != "" {
		text += "\n" + b.why
	}
	return text
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond / 10) }
