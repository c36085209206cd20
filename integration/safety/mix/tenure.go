package mix

import (
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

	value   string // of the resource, as it was read or written last
	unsure  bool   // a request of this tenure may still arrive
	refused int
}

// work claims, reads and writes until the time is over, the round ends or the lock is lost. A sleepwalker does not notice
// a loss, and stops when it has been refused a few times.
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
	for n := 0; !t.drained(); n++ {
		live := t.look()
		walking := t.sleepwalks && time.Since(t.begun) < 4*t.ttl && t.refused < 5
		switch {
		case live && n > 0 && time.Since(t.begun) >= until:
			t.leaveLate(form)
			return
		case !live && !walking:
			return
		}
		t.write(form)
		switch {
		case !live:
			t.pause(t.some(50, 150))
		case t.sleepwalks:
			t.pause(t.some(10, 60))
		default:
			t.pause(t.some(1, 6))
		}
	}
}

// length of a tenure: most are short.
func (t *tenure) length() time.Duration {
	switch kind := t.rng.IntN(20); {
	case t.sleepwalks && kind < 6: // long enough to hold when a lease would have ended
		return t.some(2000, 4500)
	case t.sleepwalks:
		return t.some(100, 1000)
	case kind == 0:
		return t.some(100, 800)
	default:
		return t.some(1, 50)
	}
}

// look asks the handle whether it is live, and records it if so.
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
		// An increment is made of what was read. After one whose fate is unknown, that is not known either.
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

func (t *tenure) ask(verb history.Verb, value string) (string, history.Outcome) {
	got, outcome := t.out.send(t.worker.name, t.name, t.op, t.handle.Token(), verb, value)
	switch outcome {
	case history.Refused:
		t.refused++
	case history.Unknown:
		t.unsure = true
	}
	return got, outcome
}

// leaveLate leaves a write on its way now and then, which arrives when the lock has been let go. Not to a counter: there
// it would undo what the same tenure has counted since.
func (t *tenure) leaveLate(form form) {
	if form == counter || t.rng.IntN(10) != 0 && !t.saboteur.ForgetToken { // each, where the test waits for one
		return
	}
	delay, value := t.some(5, 400), strconv.FormatInt(t.op, 10)+".late"
	verb := history.Write
	if form == set {
		verb, value = history.Add, ""
	}
	t.wg.Go(func() {
		t.pause(delay)
		t.out.send(t.worker.name, t.name, t.op, t.handle.Token(), verb, value)
	})
}
