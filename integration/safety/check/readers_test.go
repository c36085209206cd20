package check_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// library is a lock with readers and writers, who stand in one queue, and a register that they read and write.
type library struct {
	*generator
	bug        bug
	queue      []*visitor // by the creation of their keys
	gone       []*visitor // writers that may write once more
	together   int        // the most readers at one time
	mark, read fence.Token
	value      string
}

type visitor struct {
	waiter
	shared, granted bool
}

const (
	readerPasses   bug = "a reader passes a writer that waits"
	readerIntrudes bug = "a reader does not wait for a writer that holds"
	writerIntrudes bug = "a writer does not wait for readers"
	unmarked       bug = "the claim of a reader raises no mark"
	staleRead      bug = "a reader is not held to the mark of the writers"
	changedForOne  bug = "a reader is told now one thing, now another"
	classForgotten bug = "a reader has the key of a writer"
)

func visit(seed uint64, b bug) *library {
	l := &library{generator: newGenerator(seed), bug: b}
	for range 1500 {
		switch k := l.rng.IntN(10); {
		case k < 3 && len(l.queue) < 6:
			l.come()
		case k < 6:
			l.admit()
		case k < 8:
			l.use()
		case k == 8:
			l.late()
		default:
			l.leave()
		}
	}
	for len(l.queue) > 0 {
		l.admit()
		l.leave()
	}
	l.add(history.Event{Kind: history.Note, Name: history.NoteEnd})
	return l
}

func (l *library) come() {
	v := &visitor{shared: l.rng.IntN(3) > 0}
	v.op, v.lease = l.id(), 0x1000+l.ids
	v.actor = fmt.Sprintf("client %d/worker 1", v.op)
	e := history.Event{Kind: history.Enter, Op: v.op, Actor: v.actor, Name: "a"}
	class := ""
	if v.shared {
		e.Verb, class = history.RLock, "r"
	}
	if l.bug == classForgotten && l.rng.IntN(10) == 0 {
		class = ""
	}
	l.add(e)
	l.rev++
	v.created, v.key = l.rev, "run/a/"+class+strconv.FormatInt(v.lease, 16)+"-0"
	l.add(history.Event{Kind: history.Put, Key: v.key, Revision: l.rev, Created: l.rev, Lease: v.lease})
	l.queue = append(l.queue, v)
}

// waits reports whether v has to wait for an older one.
func (l *library) waits(v, older *visitor) bool {
	switch {
	case v.shared && older.shared:
		return false
	case v.shared && l.bug == readerPasses:
		return older.granted
	case v.shared && l.bug == readerIntrudes:
		return !older.granted
	case !v.shared && l.bug == writerIntrudes:
		return !older.shared
	}
	return true
}

func (l *library) admit() {
	for n, v := range l.queue {
		if v.granted || slices.ContainsFunc(l.queue[:n], func(older *visitor) bool { return l.waits(v, older) }) {
			continue
		}
		v.granted = true
		l.add(history.Event{Kind: history.Grant, Op: v.op, Actor: v.actor, Name: "a", Token: fence.Token(v.created), Key: v.key})
		verb := history.Claim
		if v.shared {
			verb = history.ClaimRead
		}
		l.ask(v, verb)
		inside := 0
		for _, other := range l.queue {
			if other.granted {
				inside++
			}
		}
		l.together = max(l.together, inside)
		return
	}
}

// some is one of those who are in, nil if nobody is.
func (l *library) some() *visitor {
	var in []*visitor
	for _, v := range l.queue {
		if v.granted {
			in = append(in, v)
		}
	}
	if len(in) == 0 {
		return nil
	}
	return pick(l.rng, in)
}

func (l *library) use() {
	v := l.some()
	switch {
	case v == nil:
	case v.shared:
		l.ask(v, history.CheckRead)
	default:
		l.ask(v, history.Write)
	}
}

func (l *library) leave() {
	v := l.some()
	if v == nil {
		return
	}
	l.add(history.Event{Kind: history.Live, Op: v.op})
	l.add(history.Event{Kind: history.Release, Op: v.op})
	l.queue = slices.DeleteFunc(l.queue, func(x *visitor) bool { return x == v })
	l.rev++
	l.add(history.Event{Kind: history.Delete, Key: v.key, Revision: l.rev})
	l.add(history.Event{Kind: history.Released, Op: v.op, Outcome: history.OK})
	if l.rng.IntN(3) == 0 {
		l.gone = append(l.gone, v)
	}
}

// late is a request of one who has gone.
func (l *library) late() {
	if len(l.gone) == 0 {
		return
	}
	v := l.gone[0]
	l.gone = l.gone[1:]
	if v.shared {
		l.ask(v, history.CheckRead)
	} else {
		l.ask(v, history.Write)
	}
}

// ask is a request that is answered at once.
func (l *library) ask(v *visitor, verb history.Verb) {
	e := history.Event{Kind: history.Send, Name: "a", Actor: v.actor, Token: fence.Token(v.created), Verb: verb, Request: l.id()}
	if verb == history.Write {
		e.Value = strconv.FormatInt(e.Request, 10)
	}
	l.add(e)
	value := e.Value
	e.Kind, e.Actor, e.Outcome = history.Apply, "", history.OK
	switch {
	case e.Token < l.mark && (!v.shared || l.bug != staleRead):
		e.Outcome, e.Highest = history.Refused, l.mark
	case !v.shared && e.Token < l.read:
		e.Outcome, e.Highest = history.Refused, l.read
	case v.shared && l.bug != unmarked:
		l.read = max(l.read, e.Token)
	case !v.shared:
		l.mark = e.Token
	}
	switch {
	case e.Outcome != history.OK:
	case verb == history.Write:
		l.value = value
	case verb == history.CheckRead:
		if value = l.value; l.bug == changedForOne && l.rng.IntN(10) == 0 {
			value = "old"
		}
		e.Value = value
	}
	l.add(e)
	l.add(history.Event{Kind: history.Answer, Request: e.Request, Outcome: e.Outcome, Value: value})
}

// Readers that share a lock are no violation, and whatever goes wrong between them and writers is found.
func TestCheck_readers(t *testing.T) {
	for seed := range uint64(seeds) {
		l := visit(seed, "")
		report := check.Check(l.events, check.Options{})
		require.Empty(t, report.Malformed)
		require.Empty(t, report.Violations, "seed %d", seed)
		require.Zero(t, report.Undecided, "seed %d", seed)
		require.GreaterOrEqual(t, l.together, 3, "seed %d", seed)
		for _, what := range []string{
			"  to readers", "  of readers", "  of writers, by a reader's token", "accepted claims and reads of readers", "reads compared with others of their token",
		} {
			require.Positive(t, report.Count(what), "seed %d: %s", seed, what)
		}
		for b, want := range map[bug]string{
			readerPasses: "I2/watch", readerIntrudes: "I3/intervals", writerIntrudes: "I3/intervals", unmarked: "I1/resource", staleRead: "I1/resource",
			changedForOne: "I1/steady", classForgotten: "I2/watch",
		} {
			report := check.Check(visit(seed, b).events, check.Options{})
			require.Empty(t, report.Malformed)
			require.Contains(t, checkers(report), want, "seed %d: %s", seed, b)
		}
	}
}
