package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// runTrace is the command "trace": a history in the Trace Event Format, which viewers such as ui.perfetto.dev draw.
// Each client is a process, each of its actors a thread.
func runTrace(args []string, out io.Writer) error {
	events, err := historyOf("trace", args)
	if err != nil {
		return err
	}
	t := newTracer()
	for n := range events {
		t.add(&events[n])
	}
	t.end()
	if err := json.NewEncoder(out).Encode(map[string]any{"traceEvents": t.out}); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// traced is an event of that format; times are in microseconds.
type traced struct {
	Name     string  `json:"name"`
	Phase    string  `json:"ph"` // "X": an interval; "i": a moment; "M": the name of a process or a thread
	At       float64 `json:"ts"`
	Lasts    float64 `json:"dur"`
	Process  int     `json:"pid"`
	Thread   int     `json:"tid"`
	Category string  `json:"cat,omitempty"`
	Args     any     `json:"args,omitempty"`
}

// tracer turns a history into traced events.
type tracer struct {
	out     []traced
	rows    map[string]int           // numbers of processes and threads, by name
	open    map[int64]*history.Event // by Op: the event that began its present interval, Enter or Grant
	entered map[int64]*history.Event
	senders map[int64]*history.Event
	faults  map[int64]*history.Event
	last    time.Duration
}

func newTracer() *tracer {
	return &tracer{
		rows: map[string]int{}, open: map[int64]*history.Event{}, entered: map[int64]*history.Event{},
		senders: map[int64]*history.Event{}, faults: map[int64]*history.Event{},
	}
}

func (t *tracer) add(e *history.Event) {
	t.last = max(t.last, e.At)
	switch e.Kind {
	case history.Enter:
		t.open[e.Op], t.entered[e.Op] = e, e
	case history.Grant:
		t.interval(e.Op, e)
		t.open[e.Op] = e
	case history.GiveUp, history.Lost, history.Release:
		t.interval(e.Op, e)
	case history.Send:
		t.senders[e.Request] = e
	case history.Apply:
		if s := t.senders[e.Request]; s != nil && s.Name == e.Name {
			t.moment(fmt.Sprintf("%s %s: %s", e.Verb, e.Name, e.Outcome), s.Actor, e)
		}
	case history.Observe:
		t.moment("sees "+e.Name, e.Actor, e)
	case history.Fault:
		t.faults[e.Fault] = e
		if e.Name == history.ClientKilled {
			for op, began := range t.open {
				if began.Client() == e.Target {
					t.interval(op, e)
				}
			}
		}
	case history.Heal:
		if began := t.faults[e.Fault]; began != nil {
			t.row(began.Name+" "+began.Target, "faults", began, e.At, "faults/"+began.Name, began)
			delete(t.faults, e.Fault)
		}
	default:
	}
}

// interval ends the present interval of an acquisition, in which its caller waited or held.
func (t *tracer) interval(op int64, end *history.Event) {
	began := t.open[op]
	if began == nil {
		return
	}
	delete(t.open, op)
	what := "waits for "
	if began.Kind == history.Grant {
		what = "holds "
	}
	t.row(what+began.Name, string(t.entered[op].Verb), began, max(end.At, began.At), began.Actor, []*history.Event{began, end})
}

func (t *tracer) moment(name, actor string, e *history.Event) {
	t.row(name, "", e, e.At, actor, e)
	t.out[len(t.out)-1].Phase = "i"
}

// row adds an interval, from an event to a time, to the row of an actor.
func (t *tracer) row(name, category string, from *history.Event, to time.Duration, actor string, args any) {
	client := history.Event{Actor: actor}.Client()
	process := t.number("process_name", client, 0)
	t.out = append(t.out, traced{
		Name: name, Phase: "X", At: micros(from.At), Lasts: micros(to - from.At), Category: category,
		Process: process, Thread: t.number("thread_name", actor, process), Args: map[string]any{"events": args},
	})
}

// number returns the number of a process or a thread. When it assigns one, it writes the name first.
func (t *tracer) number(kind, name string, process int) int {
	n, known := t.rows[kind+name]
	if !known {
		n = len(t.rows) + 1
		t.rows[kind+name] = n
		m := traced{Name: kind, Phase: "M", Process: process, Thread: n, Args: map[string]string{"name": name}}
		if process == 0 {
			m.Process, m.Thread = n, 0
		}
		t.out = append(t.out, m)
	}
	return n
}

// end closes the intervals that are still open at the end of the history.
func (t *tracer) end() {
	end := &history.Event{At: t.last}
	for op := range t.open {
		t.interval(op, end)
	}
	for _, began := range t.faults {
		t.add(&history.Event{At: t.last, Kind: history.Heal, Fault: began.Fault})
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
