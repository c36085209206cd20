package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// trace prints a history in the Trace Event Format, which viewers such as ui.perfetto.dev draw. Each client is a
// process, each of its actors a thread.
func trace(events []history.Event, out io.Writer) error {
	t := &tracer{rows: map[string]int{}, began: map[id]history.Event{}}
	for _, e := range events {
		t.add(e)
	}
	return json.NewEncoder(out).Encode(map[string]any{"traceEvents": t.out})
}

type traced struct {
	Name    string  `json:"name"`
	Phase   string  `json:"ph"` // "B" and "E": an interval begins and ends; "i": a moment; "M": the name of a process or a thread
	At      float64 `json:"ts"` // in microseconds
	Process int     `json:"pid"`
	Thread  int     `json:"tid"`
	Args    any     `json:"args,omitempty"`
}

type tracer struct {
	out   []traced
	rows  map[string]int       // numbers of processes and threads, by name
	began map[id]history.Event // the events that began acquisitions that wait or are held, requests and faults
}

// id has the number of an acquisition, a request or a fault.
type id struct{ op, request, fault int64 }

func (t *tracer) add(e history.Event) {
	id := id{e.Op, e.Request, e.Fault}
	if e.Kind == history.Send {
		id.op = 0 // the acquisition for which it is sent
	}
	began, known := t.began[id]
	switch e.Kind {
	case history.Enter:
		t.began[id] = e
		t.row("B", "waits for "+e.Name, e.Actor, e)
	case history.Grant:
		t.row("E", "", began.Actor, e)
		t.row("B", "holds "+e.Name, began.Actor, e)
	case history.GiveUp, history.Lost, history.Release:
		if known {
			t.row("E", "", began.Actor, e)
		}
		delete(t.began, id)
	case history.Send:
		t.began[id] = e
	case history.Apply:
		if began.Name == e.Name { // not at the unfenced control
			t.row("i", fmt.Sprintf("%s %s: %s", e.Verb, e.Name, e.Outcome), began.Actor, e)
		}
	case history.Observe:
		t.row("i", "sees "+e.Name, e.Actor, e)
	case history.Fault:
		e.Actor = "faults/" + e.Name + " " + e.Target
		t.began[id] = e
		t.row("B", e.Name+" "+e.Target, e.Actor, e)
		for of, a := range t.began {
			if of.op != 0 && e.Name == history.ClientKilled && a.Client() == e.Target {
				t.row("E", "", a.Actor, e)
				delete(t.began, of)
			}
		}
	case history.Heal:
		t.row("E", "", began.Actor, e)
	default:
	}
}

func (t *tracer) row(phase, name, actor string, e history.Event) {
	process := t.number("process_name", history.Event{Actor: actor}.Client(), 0)
	t.out = append(t.out, traced{
		name, phase, float64(e.At) / float64(time.Microsecond), process, t.number("thread_name", actor, process), e,
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
