package check_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

const ms = time.Millisecond

// generator makes a history that a run without bugs could have written.
type generator struct {
	rng    *rand.Rand
	now    time.Duration
	rev    int64
	ids    int64
	events []history.Event
}

func newGenerator(seed uint64) *generator {
	g := &generator{rng: rand.New(rand.NewPCG(seed, 1)), rev: 1}
	g.add(history.Event{Kind: history.Note, Name: history.NoteTTL, Value: "2s"})
	return g
}

// good returns a whole history of a lock with a register, a lock with a set, a lock with a counter, and an election.
func good(seed uint64, turns int) []history.Event {
	g := newGenerator(seed)
	for n, form := range []history.Verb{history.Write, history.Add, history.Increment, history.Campaign} {
		g.name(fmt.Sprintf("name%d", n), form, turns)
	}
	g.add(history.Event{Kind: history.Note, Name: history.NoteEnd})
	return g.events
}

func (g *generator) id() int64 { g.ids++; return g.ids }

// add appends an event, a few milliseconds after the last one.
func (g *generator) add(e history.Event) {
	g.now += time.Duration(1+g.rng.IntN(5)) * ms
	g.at(g.now, e)
}

func (g *generator) at(t time.Duration, e history.Event) {
	e.At = t
	g.events = append(g.events, e)
}

// waiter is an acquisition that entered.
type waiter struct {
	op, lease, created int64
	key                string
	actor              string
}

func (g *generator) enter(name string, form history.Verb) waiter {
	w := waiter{op: g.id(), lease: 0x1000 + g.rng.Int64N(1<<40), actor: fmt.Sprintf("client %d/worker 1", g.rng.IntN(5))}
	e := history.Event{Kind: history.Enter, Op: w.op, Actor: w.actor, Name: name}
	if form == history.Campaign {
		e.Verb = history.Campaign
	}
	g.add(e)
	g.rev++
	w.created = g.rev
	w.key = name + "/" + strconv.FormatInt(w.lease, 16) + "-0"
	g.add(history.Event{Kind: history.Put, Key: w.key, Revision: g.rev, Created: g.rev, Lease: w.lease})
	return w
}

// name adds turns of one name, one after the other, each with up to three waiters behind it.
func (g *generator) name(name string, form history.Verb, turns int) {
	r := &source{g: g, name: name, form: form}
	queue := []waiter{g.enter(name, form)}
	for range turns {
		for len(queue) < 1+g.rng.IntN(4) {
			queue = append(queue, g.enter(name, form))
		}
		g.turn(queue[0], r)
		queue = queue[1:]
		if len(queue) == 0 {
			queue = append(queue, g.enter(name, form))
		}
	}
	for _, w := range queue {
		g.turn(w, r)
	}
}

func (g *generator) turn(w waiter, r *source) {
	token := fence.Token(w.created)
	g.add(history.Event{Kind: history.Grant, Op: w.op, Actor: w.actor, Name: r.name, Token: token, Key: w.key})
	g.add(history.Event{Kind: history.Renewed, Lease: w.lease, Value: "1ms"})
	if r.form == history.Campaign {
		g.add(history.Event{Kind: history.Observe, Actor: "observer", Name: r.name, Token: token})
	} else {
		r.request(w, history.Claim, "")
		r.request(w, history.Read, "")
	}
	for range 1 + g.rng.IntN(3) {
		g.add(history.Event{Kind: history.Live, Op: w.op})
		r.update(w)
	}
	r.request(w, history.Read, "")
	switch g.rng.IntN(5) {
	case 0: // the lease expires, and a write arrives late
		g.add(history.Event{Kind: history.Lost, Op: w.op, Error: "lease: lost: no renewal was acknowledged before the deadline (lease 1)"})
		g.now += 2 * time.Second
		r.late(w)
	default:
		g.add(history.Event{Kind: history.Release, Op: w.op})
		defer g.add(history.Event{Kind: history.Released, Op: w.op, Outcome: history.OK})
	}
	g.rev++
	g.add(history.Event{Kind: history.Delete, Key: w.key, Revision: g.rev})
}

// source is a resource that makes its events.
type source struct {
	g       *generator
	name    string
	form    history.Verb
	value   string
	set     []string
	highest fence.Token
}

func (r *source) read() string {
	switch r.form {
	case history.Add:
		return strings.Join(slices.Sorted(slices.Values(r.set)), ",")
	case history.Increment:
		if r.value == "" {
			return "0"
		}
	}
	return r.value
}

func (r *source) update(w waiter) {
	switch r.form {
	case history.Increment:
		n, _ := strconv.Atoi(r.value)
		r.request(w, r.form, strconv.Itoa(n+1))
	case history.Campaign:
	default:
		r.request(w, r.form, strconv.FormatInt(r.g.id(), 10))
	}
}

// request adds a request, its application and its answer. One answer in ten is lost.
func (r *source) request(w waiter, verb history.Verb, value string) {
	if r.form == history.Campaign {
		return
	}
	e := history.Event{Name: r.name, Actor: w.actor, Token: fence.Token(w.created), Verb: verb, Value: value, Request: r.g.id()}
	e.Kind = history.Send
	r.g.add(e)
	r.highest = max(r.highest, e.Token)
	e.Kind, e.Actor, e.Outcome, e.Highest = history.Apply, "", history.OK, r.highest
	switch verb {
	case history.Read:
		e.Value = r.read()
	case history.Add:
		r.set = append(r.set, value)
	case history.Write, history.Increment:
		r.value = value
	}
	r.g.add(e)
	answer := history.Event{Kind: history.Answer, Request: e.Request, Outcome: history.OK, Value: e.Value}
	if r.g.rng.IntN(10) == 0 {
		answer.Outcome, answer.Value = history.Unknown, ""
	}
	r.g.add(answer)
}

// late adds an update that is refused, because the next holder has claimed the resource.
func (r *source) late(w waiter) {
	if r.form == history.Campaign {
		return
	}
	e := history.Event{
		Kind: history.Send, Name: r.name, Actor: w.actor, Token: fence.Token(w.created), Verb: history.Write, Value: "late", Request: r.g.id(),
	}
	if r.form == history.Add {
		e.Verb = history.Add
	}
	r.g.add(e)
	e.Kind, e.Actor, e.Outcome, e.Highest = history.Apply, "", history.Refused, e.Token+1
	r.g.add(e)
	r.g.add(history.Event{Kind: history.Answer, Request: e.Request, Outcome: history.Refused})
}
