package mix

import (
	"context"
	"strconv"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// tenure is what a worker does while it holds a name.
type tenure struct {
	*worker
	op     int64
	name   string
	handle handle
	begun  time.Time

	value   string // of the resource, when it was last read or written
	unsure  bool   // a request of this tenure may still arrive
	refused int
}

// work claims, reads and then writes.
func (t *tenure) work() {
	form := t.names.form(t.name)
	until := t.length()
	if _, outcome := t.ask(history.Claim, ""); outcome != history.OK {
		return
	}
	var outcome history.Outcome
	if t.value, outcome = t.ask(history.Read, ""); outcome != history.OK {
		return
	}
	if t.rng.IntN(20) == 0 {
		t.impersonate(form)
	}
	held := t.repeat(until, func(live bool) {
		t.write(form)
		t.proclaim(live)
	})
	if held {
		t.leaveLate(form)
	}
}

// read is the tenure of a reader: it claims and then reads.
func (t *tenure) read() {
	until := t.length()
	if _, outcome := t.ask(history.ClaimRead, ""); outcome == history.OK {
		t.repeat(until, func(bool) { t.ask(history.CheckRead, "") })
	}
}

// repeat repeats do until the time is over, the round ends or the lock is lost. A sleepwalker does not notice a loss,
// and stops when it has been refused a few times. repeat reports whether the lock was held to the end of the time.
func (t *tenure) repeat(until time.Duration, do func(live bool)) (held bool) {
	for n := 0; !t.drained(); n++ {
		live := t.look()
		walking := t.sleepwalks && time.Since(t.begun) < 4*t.ttl && t.refused < 5
		switch {
		case live && n > 0 && time.Since(t.begun) >= until:
			return true
		case !live && !walking:
			return false
		}
		do(live)
		switch {
		case !live:
			t.pause(t.some(50, 150))
		case t.sleepwalks:
			t.pause(t.some(10, 60))
		default:
			t.pause(t.some(1, 6))
		}
	}
	return false
}

// proclaim changes a leader's value now and then. After a loss Proclaim must fail, so a success is recorded as a live
// handle.
func (t *tenure) proclaim(live bool) {
	l, leads := t.handle.(interface {
		Proclaim(ctx context.Context, value string) error
	})
	if !leads || t.rng.IntN(8) != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.ttl)
	defer cancel()
	if err := l.Proclaim(ctx, t.worker.name); err == nil && !live {
		t.log.Record(history.Event{Kind: history.Live, Op: t.op})
	}
}

// length returns how long the tenure lasts. Most tenures are short.
func (t *tenure) length() time.Duration {
	switch kind := t.rng.IntN(20); {
	case t.sleepwalks && kind < 6: // longer than a TTL, so that renewals matter
		return t.some(2000, 4500)
	case t.sleepwalks:
		return t.some(100, 1000)
	case kind == 0:
		return t.some(100, 800)
	default:
		return t.some(1, 50)
	}
}

// look asks the handle whether it is live, and records that it is. Its context alone is not enough: in a process that
// was stopped, it may end a moment after the process has woken up.
func (t *tenure) look() bool {
	at := t.log.Now()
	live := t.handle.Err() == nil
	if live || t.saboteur.FalseLive {
		t.log.Record(history.Event{At: at, Kind: history.Live, Op: t.op})
	}
	return live
}

func (t *tenure) write(form form) {
	switch form {
	case register:
		t.ask(history.Write, strconv.FormatInt(t.op, 10)+"."+strconv.Itoa(t.rng.IntN(1000)))
	case set:
		t.ask(history.Add, "")
	case counter:
		// An increment writes the last known value plus one. After a request of unknown outcome, the value is unknown.
		if t.unsure {
			return
		}
		n, err := strconv.ParseInt(t.value, 10, 64)
		if err != nil {
			return
		}
		t.value = strconv.FormatInt(n+1, 10)
		t.ask(history.Increment, t.value)
	}
}

// impersonate writes with the token just below this tenure's, which nobody has: a mark that is off by one would accept
// it.
func (t *tenure) impersonate(form form) {
	verb := history.Write
	switch form {
	case set:
		verb = history.Add
	case counter: // if it were accepted, it would undo increments of others
		return
	}
	_, _, _ = t.out.send(t.worker.name, t.name, t.op, t.handle.Token()-1, verb, strconv.FormatInt(t.op, 10)+".before")
}

func (t *tenure) ask(verb history.Verb, value string) (string, history.Outcome) {
	got, outcome, _ := t.out.send(t.worker.name, t.name, t.op, t.handle.Token(), verb, value)
	switch outcome {
	case history.Refused:
		t.refused++
	case history.Unknown:
		t.unsure = true
	}
	return got, outcome
}

// leaveLate now and then sends a few writes that arrive when the lock is released, or later. A register takes some time
// for each. So the first is still being applied when the next holder claims. The claim waits, and the other writes wait
// behind the claim, with a token that was not stale when they arrived. A counter gets no such writes: they would undo
// later increments of the same tenure.
func (t *tenure) leaveLate(form form) {
	if form == counter || t.rng.IntN(10) != 0 && !t.saboteur.ForgetToken { // every time if a test waits for one
		return
	}
	const many = 4
	verb, value := history.Write, strconv.FormatInt(t.op, 10)+lateMark
	if form == set {
		verb, value = history.Add, ""
	}
	for i := range many {
		delay := t.some(0, 1+i*40)
		t.wg.Go(func() {
			t.pause(delay)
			_, _, _ = t.out.send(t.worker.name, t.name, t.op, t.handle.Token(), verb, value)
		})
	}
}
