package timeline_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/integration/safety/timeline"
)

func fixture(t *testing.T, name string) []history.Event {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "check", "testdata", name))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	events, err := history.ReadAll(f)
	require.NoError(t, err)
	return events
}

// picture is what was drawn: its text by element, and the number of elements by name.
type picture struct {
	elements map[string]int
	all      int
	text     map[string][]string
	page     string
}

func draw(t *testing.T, events []history.Event, opts timeline.Options) picture {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, timeline.Draw(&page, events, opts))
	p := picture{elements: map[string]int{}, text: map[string][]string{}, page: page.String()}
	dec := xml.NewDecoder(&page)
	var in []string
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "no XML")
		switch token := token.(type) {
		case xml.StartElement:
			p.elements[token.Name.Local]++
			p.all++
			in = append(in, token.Name.Local)
		case xml.EndElement:
			in = in[:len(in)-1]
		case xml.CharData:
			if len(in) > 0 {
				last := in[len(in)-1]
				p.text[last] = append(p.text[last], string(token))
			}
		}
	}
	require.Zero(t, p.elements["script"])
	return p
}

func (p picture) told() string { return strings.Join(append(p.text["title"], p.text["text"]...), "\n") }

// The story of a fence can be read off the picture: who lost it and why, who had it next, and what was refused.
func TestDraw_tellsWhatHappened(t *testing.T) {
	told := draw(t, fixture(t, "good-late-refused.jsonl"), timeline.Options{Title: "<Late & refused>"}).told()
	for _, want := range []string{
		"<Late & refused>",
		"client 1/worker 1 held a, 5ms to 1.9s, lost\ntoken 2\nlease: lost: no renewal was acknowledged",
		"client 2/worker 1 waited for a, 60ms to 2.101s",
		"client 2/worker 1 held a, 2.101s to 2.13s\ntoken 3",
		"write of client 1/worker 1 at a, token 2, 2.12s: refused",
		"2 held, 2 requests accepted, 1 refused, 0 faults",
	} {
		require.Contains(t, told, want)
	}
}

func TestDraw_showsFaultsAndElections(t *testing.T) {
	told := draw(t, fixture(t, "good-operator-revokes.jsonl"), timeline.Options{}).told()
	require.Contains(t, told, "partition: client 1, 390ms to 2s")
	require.Contains(t, told, "operator revokes: 1001, 400ms to 403ms")
	told = draw(t, fixture(t, "I8-observer-goes-back.jsonl"), timeline.Options{}).told()
	require.Contains(t, told, "a (election)")
	require.Contains(t, told, "observer 1 saw token 4 at 206ms")
	told = draw(t, fixture(t, "good-killed.jsonl"), timeline.Options{}).told()
	require.Contains(t, told, "client 1/worker 1 held a, 5ms to 55ms, killed")
	require.Contains(t, told, "client 1/worker 2 waited for a, 10ms to 55ms, killed")
}

// long is a history of n turns of 10 ms, of names a and b in turn, with a storm of waiters.
func long(n int) []history.Event {
	var events []history.Event
	for k := range n {
		at, op, name := time.Duration(k)*10*time.Millisecond, int64(k+1), []string{"a", "b"}[k%2]
		actor := fmt.Sprintf("client %d/worker 1", k%7)
		events = append(events,
			history.Event{At: at, Kind: history.Enter, Op: op, Actor: actor, Name: name},
			history.Event{At: at + 1e6, Kind: history.Grant, Op: op, Actor: actor, Name: name, Token: fence.Token(k + 2)},
			history.Event{At: at + 2e6, Kind: history.Send, Request: op, Actor: actor, Name: name},
			history.Event{At: at + 3e6, Kind: history.Apply, Request: op, Name: name, Verb: history.Write, Outcome: history.OK, Token: fence.Token(k + 2)},
			history.Event{At: at + 9e6, Kind: history.Release, Op: op})
	}
	for k := range 30 {
		events = append(events, history.Event{At: 5e6, Kind: history.Enter, Op: int64(n + k + 1), Actor: "client 1/storm", Name: "a"})
	}
	return events
}

func TestDraw_isNeverTooLarge(t *testing.T) {
	for _, n := range []int{10, 1_000, 20_000} {
		p := draw(t, long(n), timeline.Options{})
		require.LessOrEqual(t, p.all, 2010) // the limit, and the frame around it
		require.Contains(t, p.told(), "token 2\n", "the beginning is missing")
		require.Contains(t, p.told(), "client 1/storm +26")
		if n > 1000 {
			require.Contains(t, p.told(), fmt.Sprintf("of a history of %v", (time.Duration(n)*10*time.Millisecond-time.Millisecond).Seconds()))
		}
	}
}

func TestDraw_drawsThePartThatIsAsked(t *testing.T) {
	p := draw(t, long(1000), timeline.Options{From: 5 * time.Second, To: 5100 * time.Millisecond, Names: []string{"b"}})
	require.NotContains(t, p.told(), "token 501\n", "ended before")
	require.Contains(t, p.told(), "token 503\n")
	require.NotContains(t, p.told(), "waited for b, 10ms to", "served before")
	require.NotContains(t, p.told(), "token 504\n", "of another name")
	require.NotContains(t, p.told(), "token 513\n", "begins later")
}

func TestDraw_refusesNothing(t *testing.T) {
	for _, opts := range []timeline.Options{
		{From: 2 * time.Second, To: time.Second},
		{From: time.Hour},
		{Names: []string{"c"}},
	} {
		var page bytes.Buffer
		require.Error(t, timeline.Draw(&page, long(10), opts))
		require.Zero(t, page.Len())
	}
	require.Error(t, timeline.Draw(io.Discard, nil, timeline.Options{}))
}

func TestDraw_tellsReadersFromWriters(t *testing.T) {
	told := draw(t, fixture(t, "good-two-readers.jsonl"), timeline.Options{}).told()
	for _, want := range []string{
		"client 1/worker 1 held a, 3ms to 20ms\ntoken 2",
		"client 2/worker 1 waited for a as a reader, 6ms to 26ms",
		"client 2/worker 1 held a as a reader, 26ms to 50ms\ntoken 3",
		"client 3/worker 1 held a as a reader, 25ms to 40ms\ntoken 4",
		"write of client 1/worker 1 at a, token 2, 29.2ms: refused",
		"checkread of client 2/worker 1 at a, token 3, 58.2ms: refused",
	} {
		require.Contains(t, told, want)
	}
}
