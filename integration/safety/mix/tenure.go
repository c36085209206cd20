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
	*held
	op     int64
	update history.Verb
	begun  time.Time

	value   string // of the resource, when it was last read or written
	unsure  bool   // a request of this tenure may still arrive
	refused int
}

// work claims, reads and then writes. A reader claims and then reads.
func (w *worker) work(op int64, h *held) {
	t := &tenure{worker: w, held: h, op: op, update: w.names.update(h.resource), begun: time.Now()}
	until := t.length()
	if t.shared {
		if t.ask(history.ClaimRead, "") == history.OK {
			t.repeat(until, func(bool) { t.ask(history.CheckRead, "") })
		}
		return
	}
	if t.ask(history.Claim, "") != history.OK || t.ask(history.Read, "") != history.OK {
		return
	}
	if t.update != history.Increment && t.rng.IntN(20) == 0 {
		// Nobody has the token just below this one: a mark that is off by one would accept it. At a counter the write
		// would undo increments of others.
		_, _, _ = t.out.send(t.name, t.resource, op, t.token-1, t.update, strconv.FormatInt(op, 10)+".before")
	}
	held := t.repeat(until, func(live bool) {
		t.write()
		t.publish(live)
	})
	if held && t.update != history.Increment && t.rng.IntN(10) == 0 {
		t.writeLate()
	}
}

// repeat repeats do until the time is over, the round ends or the lock is lost. A sleepwalker does not notice a loss,
// and stops when it has been refused a few times. repeat reports whether the lock was held to the end of the time.
func (t *tenure) repeat(until time.Duration, do func(live bool)) (held bool) {
	for n := 0; !t.drained(); n++ {
		live := t.look(t.op, t.held)
		walking := t.sleepwalks && time.Since(t.begun) < 4*ttl && t.refused < 5
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

// publish changes a leader's value now and then. After a loss Proclaim must fail, so a success is recorded as a live
// handle.
func (t *tenure) publish(live bool) {
	if t.proclaim == nil || t.rng.IntN(8) != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	if err := t.proclaim(ctx, t.name); err == nil && !live {
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

func (t *tenure) write() {
	value := strconv.FormatInt(t.op, 10) + "." + strconv.Itoa(t.rng.IntN(1000))
	if t.update == history.Increment {
		// An increment writes the last known value plus one. After a request of unknown outcome, the value is unknown.
		n, err := strconv.ParseInt(t.value, 10, 64)
		if t.unsure || err != nil {
			return
		}
		t.value = strconv.FormatInt(n+1, 10)
		value = t.value
	}
	t.ask(t.update, value)
}

// ask sends a request and keeps what a read has returned.
func (t *tenure) ask(verb history.Verb, value string) history.Outcome {
	got, outcome, _ := t.out.send(t.name, t.resource, t.op, t.token, verb, value)
	switch {
	case outcome == history.Refused:
		t.refused++
	case outcome == history.Unknown:
		t.unsure = true
	case verb == history.Read:
		t.value = got
	}
	return outcome
}

// writeLate sends a few writes that arrive when the lock is released, or later. A register takes some time for each. So
// the first is still being applied when the next holder claims. The claim waits, and the other writes wait behind the
// claim, with a token that was not stale when they arrived. A counter gets no such writes: they would undo later
// increments of the same tenure.
func (t *tenure) writeLate() {
	const many = 4
	for i := range many {
		delay := t.some(0, 1+i*40)
		t.wg.Go(func() {
			t.pause(delay)
			_, _, _ = t.out.send(t.name, t.resource, t.op, t.token, t.update, strconv.FormatInt(t.op, 10)+lateMark)
		})
	}
}
