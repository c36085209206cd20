package check_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// crowd is a lock with sessions that take turns, one for each client: in each those who wait stand in a line, and the
// session has one place in the queue for all of them.
type crowd struct {
	*generator
	sessions []*session
	queue    []*session // by the creation of their keys
	holder   *waiter
	bug      bug
}

type session struct {
	client  string
	lease   int64
	keys    int
	key     string // its place, "" if it has none
	created int64
	line    []*waiter
	workers int
}

// bug is a way to starve somebody, by its name. None: nobody.
type bug string

const (
	lastFirst bug = "the last who came is the next of its session"
	forgotten bug = "one waiter is passed over in its session"
	noPlace   bug = "one session takes no place"
	placeLost bug = "one session takes a new place again and again"
)

// jostle is the history of a crowd.
func jostle(seed uint64, b bug) []history.Event {
	c := &crowd{generator: newGenerator(seed), bug: b}
	for n := range 4 {
		c.sessions = append(c.sessions, &session{client: fmt.Sprintf("client %d", n), lease: int64(0x1000 + n)})
	}
	for range 2000 {
		c.now += 10 * ms
		s := pick(c.rng, c.sessions)
		switch k := c.rng.IntN(20); {
		case k < 8 && len(s.line) < 5:
			c.enter(s)
		case k == 8 && len(s.line) > 1:
			if n := c.rng.IntN(len(s.line)); s.line[n] != c.holder && (n > 0 || c.bug != forgotten) {
				c.giveUp(s, n)
			}
		case k < 15:
			c.next()
		}
	}
	if c.holder != nil {
		c.next()
	}
	for _, s := range c.sessions {
		for len(s.line) > 0 {
			c.giveUp(s, 0)
		}
	}
	c.add(history.Event{Kind: history.Note, Name: history.NoteEnd})
	return c.events
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// unlucky is the session that a bug is about.
func (c *crowd) unlucky(s *session) bool { return s == c.sessions[0] }

func (c *crowd) enter(s *session) {
	s.workers++
	w := &waiter{op: c.id(), actor: fmt.Sprintf("%s/worker %d", s.client, s.workers)}
	c.add(history.Event{Kind: history.Enter, Op: w.op, Actor: w.actor, Name: "a"})
	s.line = append(s.line, w)
	c.join(s)
}

// join takes a place at the end of the queue.
func (c *crowd) join(s *session) {
	if s.key != "" || len(s.line) == 0 || c.bug == noPlace && c.unlucky(s) {
		return
	}
	c.rev++
	s.keys++
	s.key, s.created = "run/a/"+strconv.FormatInt(s.lease, 16)+"-"+strconv.Itoa(s.keys), c.rev
	c.add(history.Event{Kind: history.Put, Key: s.key, Revision: c.rev, Created: c.rev, Lease: s.lease})
	c.queue = append(c.queue, s)
}

// leave gives up the place.
func (c *crowd) leave(s *session) {
	if s.key == "" {
		return
	}
	c.rev++
	c.add(history.Event{Kind: history.Delete, Key: s.key, Revision: c.rev})
	s.key = ""
	c.queue = slices.DeleteFunc(c.queue, func(x *session) bool { return x == s })
}

// giveUp leaves the session's place to the next of its line.
func (c *crowd) giveUp(s *session, n int) {
	w := s.line[n]
	s.line = slices.Delete(s.line, n, n+1)
	if len(s.line) == 0 {
		c.leave(s)
	}
	c.add(history.Event{Kind: history.GiveUp, Op: w.op, Outcome: history.Failed, Error: "context canceled"})
}

// next ends a tenure, or begins one.
func (c *crowd) next() {
	if c.holder == nil {
		c.serve()
		return
	}
	w, s := c.holder, c.queue[0]
	c.add(history.Event{Kind: history.Live, Op: w.op})
	c.add(history.Event{Kind: history.Release, Op: w.op})
	c.leave(s)
	s.line, c.holder = slices.DeleteFunc(s.line, func(x *waiter) bool { return x == w }), nil
	c.join(s)
	c.add(history.Event{Kind: history.Released, Op: w.op, Outcome: history.OK})
}

func (c *crowd) serve() {
	if c.bug == placeLost && len(c.queue) > 1 && c.unlucky(c.queue[0]) {
		s := c.queue[0]
		c.leave(s)
		c.join(s)
	}
	if len(c.queue) == 0 {
		return
	}
	s := c.queue[0]
	w := s.line[0]
	switch last := len(s.line) - 1; {
	case c.bug == lastFirst:
		w = s.line[last]
	case c.bug == forgotten && c.unlucky(s) && last > 0:
		w = s.line[1]
	}
	c.holder = w
	c.add(history.Event{Kind: history.Grant, Op: w.op, Actor: w.actor, Name: "a", Token: fence.Token(s.created), Key: s.key})
}

// A session with many waiters has turns with the others, and nobody is overtaken; whoever is starved is found.
func TestCheck_order(t *testing.T) {
	for seed := range uint64(seeds) {
		report := check.Check(jostle(seed, ""), check.Options{})
		require.Empty(t, report.Malformed)
		require.Empty(t, report.Violations, "seed %d", seed)
		require.Greater(t, report.Count("waiters that others could have overtaken"), int64(100), "seed %d", seed)
		require.Greater(t, report.Count("waiters compared with others of their session"), int64(100), "seed %d", seed)
		for _, b := range []bug{lastFirst, forgotten, noPlace, placeLost} {
			report := check.Check(jostle(seed, b), check.Options{})
			require.Empty(t, report.Malformed)
			require.Equal(t, []string{"I7/order"}, checkers(report), "seed %d: %s", seed, b)
		}
	}
}

// A fault of the starved one's client excuses it, one of another client does not.
func TestCheck_orderUnderFaults(t *testing.T) {
	for target, want := range map[string][]string{"client 0": nil, "member 1": nil, "client 1": {"I7/order"}} {
		events := jostle(1, noPlace)
		events = slices.Insert(events, 2, history.Event{At: 1, Kind: history.Fault, Fault: 1, Name: "partition", Target: target})
		require.Equal(t, want, checkers(check.Check(events, check.Options{})), target)
	}
}

// Who is starved may be served when all others are gone, and is found all the same.
func TestCheck_orderOfOneWhoIsServed(t *testing.T) {
	events, _ := fixture(t, "testdata/I7-overtaken.jsonl")
	require.NotEmpty(t, check.Check(events, check.Options{}).Violations)
	noTTL := slices.DeleteFunc(slices.Clone(events), func(e history.Event) bool { return e.Name == history.NoteTTL })
	require.Empty(t, check.Check(noTTL, check.Options{}).Violations, "without a TTL waits are not judged")
}
