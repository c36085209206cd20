package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

const (
	entering = time.Second // the longest time, without faults, to take a place in the queue or to hand it on
	passes   = 2           // how often a client may pass a waiter that entered earlier

	// Within a session the order is strict. But a process that is short of CPU time takes its place long after its
	// enter event. So up to unclear waiters of a history may look overtaken by more than within.
	within  = 250 * time.Millisecond
	unclear = 4
)

// order checks that waiters are served in their order, see the package's doc.
//
// A client whose waiters want a name has places in etcd's queue: one for each session, or for readers and candidates
// one for each waiter. An acquisition that enters later comes behind: in the same session in the line of the process,
// otherwise in etcd's queue. It goes first only if it takes over the place of a waiter that gives up, once for each
// session. A place is used up when an earlier waiter of the client has held the name or has left. Then the client takes
// a new place, and passes are counted from 0. A reader's place is used up only by the reader.
func (c *checker) order() {
	names := map[string]*turns{}
	could := 0
	hindrances := c.hindrances()
	for _, a := range c.ops {
		t := names[a.name()]
		if t == nil {
			t = &turns{byClient: map[string][]*acquisition{}, hindrances: hindrances}
			names[a.name()] = t
		}
		if !a.shared() && !a.alone() {
			t.byClient[a.enter.Client()] = append(t.byClient[a.enter.Client()], a)
		}
		if a.grant != nil {
			t.granted = append(t.granted, a)
		}
		if a.waits() && !a.alone() {
			t.waiters = append(t.waiters, &overtaken{acquisition: a})
			if hindrances[a.enter.Client()].spare(a.enter.At, min(a.served(), c.last)) > entering {
				could++
			}
		}
	}
	for name, t := range names {
		if c.ttl > 0 && !c.unordered[name] {
			c.overtaking(name, t)
		}
	}
	c.count("waiters that others could have overtaken", could)
}

// turns are the acquisitions of one name.
type turns struct {
	byClient   map[string][]*acquisition // those that share their client's places, by the time at which they entered
	granted    []*acquisition
	waiters    []*overtaken // by the time at which they entered
	hindrances map[string]spans
}

// overtaken is a waiter.
type overtaken struct {
	*acquisition
	round    time.Duration             // since when passes are counted
	by       map[string][]*acquisition // the acquisitions that passed it, by client
	reported bool
}

// overtaking compares each acquisition that is granted with the waiters that entered earlier and still wait.
func (c *checker) overtaking(name string, t *turns) {
	slices.SortStableFunc(t.granted, func(x, y *acquisition) int { return cmp.Compare(x.grant.At, y.grant.At) })
	var waiting []*overtaken
	for _, x := range t.granted {
		for len(t.waiters) > 0 && t.waiters[0].enter.At < x.grant.At {
			waiting, t.waiters = append(waiting, t.waiters[0]), t.waiters[1:]
		}
		waiting = slices.DeleteFunc(waiting, func(w *overtaken) bool { return w.reported || w.served() <= x.grant.At })
		since := x.enter.At - entering
		for _, w := range waiting {
			if w.enter.At >= since {
				break
			}
			if !t.passed(w, x, since) {
				continue
			}
			client := x.enter.Client()
			w.by[client] = append(w.by[client], x)
			if n := len(w.by[client]); n > passes {
				w.reported = true
				events := show(w.enter)
				for _, a := range w.by[client] {
					events = append(events, show(a.enter, a.grant)...)
				}
				c.bad("I7", name, append(events, show(w.grant)...),
					"%s has waited since %v, and %s entered later and was granted it %d times: want at most %d",
					w.enter.Actor, w.enter.At, client, n, passes)
			}
		}
	}
}

// passed reports whether x was granted the name before w, although w's client had a place in the queue from since, a
// second before x entered, until the grant. If the client has taken a new place since the last pass, w's passes are
// reset.
func (t *turns) passed(w *overtaken, x *acquisition, since time.Duration) bool {
	to := x.grant.At
	if w.grant != nil && w.token() < x.token() || t.hindrances[w.enter.Client()].touch(since, to) {
		return false
	}
	round := time.Duration(0)
	var places []*acquisition
	if !w.shared() {
		places = t.byClient[w.enter.Client()]
	}
	for _, a := range places {
		if a.enter.At > w.enter.At+entering {
			break
		}
		left := a.left()
		switch {
		case a == w.acquisition:
		case left >= since && (left <= to || a.served() <= to):
			return false // a used up the place; a holder that lost its lock keeps its turn until Unlock
		case left < since:
			round = max(round, left)
		}
	}
	if w.by == nil || round > w.round {
		w.round, w.by = round, map[string][]*acquisition{}
	}
	return true
}

// sessionOrder checks the order within each session. No fault changes it, since the waiters stand in line in the
// process. The lease of the key identifies the session. Readers and candidates of elections are left out, since each
// has its own place in etcd's queue.
func (c *checker) sessionOrder() {
	type session struct {
		name  string
		lease int64
	}
	sessions := map[session][]*acquisition{}
	for _, a := range c.ops {
		if k := c.keyOf(a); k != nil && !a.shared() && !a.alone() && !c.elections[a.name()] {
			on := session{a.name(), k.put.Lease}
			sessions[on] = append(sessions[on], a)
		}
	}
	compared := 0
	var overtaken []*acquisition // by more than within
	for on, all := range sessions {
		slices.SortStableFunc(all, func(x, y *acquisition) int { return cmp.Compare(x.token(), y.token()) })
		var latest []*acquisition // of the acquisitions granted so far, those that entered last; the last one first
		for _, a := range all {
			if a.waits() && a.grant.At-a.enter.At > entering {
				compared++
			}
			if a.waits() && len(latest) > 0 && latest[0].enter.At > a.enter.At+within && !c.stalls.touch(a.enter.At, latest[0].enter.At) {
				overtaken = append(overtaken, a)
			}
			if a.waits() && len(latest) > passes && latest[passes].enter.At > a.enter.At+entering {
				events := show(a.enter)
				for _, x := range latest {
					events = append(events, show(x.enter, x.grant)...)
				}
				c.bad("I7", on.name, append(events, show(a.grant)...),
					"%s has waited since %v, and %d others of its session that entered later were granted it before: want at most %d",
					a.enter.Actor, a.enter.At, len(latest), passes)
			}
			latest = append(latest, a)
			slices.SortStableFunc(latest, func(x, y *acquisition) int { return cmp.Compare(y.enter.At, x.enter.At) })
			latest = latest[:min(len(latest), passes+1)]
		}
	}
	if len(overtaken) > unclear {
		var events []history.Event
		for _, a := range overtaken[:unclear] {
			events = append(events, show(a.enter, a.grant)...)
		}
		c.bad("I7", overtaken[0].name(), events,
			"%d waiters were served after others of their session that entered more than %v later, want at most %d", len(overtaken), within, unclear)
	}
	c.count("waiters compared with others of their session", compared)
	c.count("  that look overtaken", len(overtaken))
}

// waits reports whether a waits for the name. A try does not.
func (a *acquisition) waits() bool { return !a.enter.Verb.Tries() }

// served returns when a's wait was over.
func (a *acquisition) served() time.Duration {
	if a.grant != nil {
		return a.grant.At
	}
	return a.ended()
}

// left returns when a ceased to use the place of its client.
func (a *acquisition) left() time.Duration {
	switch {
	case a.grant == nil:
		return a.ended()
	case a.released != nil:
		return a.released.At
	case a.died > 0:
		return a.died
	}
	return forever
}
