package timeline_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/integration/safety/timeline"
)

// at is a time in tenths of a second.
func at(n int) time.Duration { return time.Duration(n) * 100 * time.Millisecond }

// story is a history of a lock: one waits from 1 s to 3 s and holds until 5 s, which it is known to do until 4 s.
func story(more ...history.Event) []history.Event {
	return append([]history.Event{
		{At: at(0), Kind: history.Note},
		{At: at(10), Kind: history.Enter, Op: 1, Actor: "client 1/worker 1", Name: "a"},
		{At: at(30), Kind: history.Grant, Op: 1, Actor: "client 1/worker 1", Name: "a", Token: 7},
		{At: at(40), Kind: history.Live, Op: 1},
		{At: at(50), Kind: history.Release, Op: 1},
		{At: at(100), Kind: history.Note},
	}, more...)
}

// A part has what was on at some time of it, however long before that it began and after that it ended.
func TestDraw_drawsWhatAPartHas(t *testing.T) {
	events := story(
		history.Event{At: at(15), Kind: history.Fault, Fault: 1, Name: "partition", Target: "elsewhere"},
		history.Event{At: at(45), Kind: history.Heal, Fault: 1},
		history.Event{At: at(32), Kind: history.Send, Request: 1, Actor: "client 1/worker 1", Name: "a"},
		history.Event{At: at(35), Kind: history.Apply, Request: 1, Name: "a", Token: 7, Verb: history.Write, Outcome: history.OK},
		history.Event{At: at(35), Kind: history.Observe, Actor: "observer", Name: "a", Token: 7},
		// Another waits all the time, or there would be nothing to draw.
		history.Event{At: at(1), Kind: history.Enter, Op: 2, Actor: "client 2/worker 1", Name: "a"},
	)
	const wait, hold, fault, sight = "waited for a, 1s to 3s", "held a, 3s to 5s", "partition: elsewhere, 1.5s to 4.5s", "saw token 7 at 3.5s"
	const one, none = "1 requests accepted", "0 requests accepted"
	for _, part := range []struct {
		from, to int
		want     string
	}{
		{2, 10, none},
		{2, 11, wait + none},
		{12, 14, wait + none},
		{16, 20, wait + fault + none},
		{29, 31, wait + hold + fault + none},
		{31, 34, hold + fault + none},
		{34, 35, hold + fault + sight + one},
		{35, 36, hold + fault + sight + one},
		{36, 46, hold + fault + none},
		{46, 49, hold + none},
		{51, 60, none},
	} {
		told := draw(t, events, timeline.Options{From: at(part.from), To: at(part.to)}).told()
		for _, what := range []string{wait, hold, fault, sight, one, none} {
			require.Equal(t, strings.Contains(part.want, what), strings.Contains(told, what), "%v to %v: %s", at(part.from), at(part.to), what)
		}
	}
}

// A wait is drawn from the moment of asking to that of an answer, whatever that was.
func TestDraw_waits(t *testing.T) {
	enter := history.Event{At: at(2), Kind: history.Enter, Op: 2, Actor: "client 2/worker 1", Name: "a"}
	for _, c := range []struct {
		want string
		more []history.Event
	}{
		{"waited for a, 200ms to 10s", nil}, // it still waits
		{"waited for a, 200ms to 700ms, gave up\nno more", []history.Event{{At: at(7), Kind: history.GiveUp, Op: 2, Error: "no more"}}},
		{"waited for a, 200ms to 800ms\n", []history.Event{{At: at(8), Kind: history.Grant, Op: 2, Token: 3}, {At: at(9), Kind: history.Release, Op: 2}}},
		{"waited for a, 200ms to 600ms, killed", []history.Event{{At: at(6), Kind: history.Fault, Name: history.ClientKilled, Target: "client 2"}}},
		{"waited for a, 200ms to 10s\n", []history.Event{{At: at(6), Kind: history.Fault, Name: history.ClientKilled, Target: "client 3"}}},
		{"waited for a, 200ms to 10s\n", []history.Event{{At: at(1), Kind: history.Fault, Name: history.ClientKilled, Target: "client 2"}}},
	} {
		told := draw(t, story(append([]history.Event{enter}, c.more...)...), timeline.Options{}).told() + "\n"
		require.Contains(t, told, "client 2/worker 1 "+c.want)
		require.Contains(t, told, "client 1/worker 1 waited for a, 1s to 3s\n")
	}
}

// Where a history does not tell whether a handle that was lost was live, the picture does not either.
func TestDraw_doubt(t *testing.T) {
	lost := history.Event{At: at(70), Kind: history.Lost, Op: 1, Error: "gone"}
	released := story(lost)
	require.Contains(t, draw(t, released, timeline.Options{}).told(), "held a, 3s to 5s\n", "what is let go is not lost")
	var events []history.Event
	for _, e := range story(lost) {
		if e.Kind != history.Release {
			events = append(events, e)
		}
	}
	p := draw(t, events, timeline.Options{To: at(100)})
	require.Contains(t, p.told(), "held a, 3s to 7s, lost\ntoken 7\ngone")
	const scale = (1600 - 190 - 24) / 10.0 // of a second
	for what, width := range map[string]float64{`fill-opacity=".5"/>`: 22, "sure": 1 * scale, "doubt": 3 * scale} {
		require.Contains(t, p.page, fmt.Sprintf(`width="%.1f"`, width), what)
	}
}

// An actor that does several things at once has a row for each. What does not fit is counted if it is a wait, and drawn if
// it is a tenure.
func TestDraw_rows(t *testing.T) {
	bar := func(op int64, from, to int, grants bool) []history.Event {
		events := []history.Event{{At: at(from), Kind: history.Enter, Op: op, Actor: "client 1/worker 1", Name: fmt.Sprintf("n%d", op)}}
		if grants {
			return append(events,
				history.Event{At: at(from), Kind: history.Grant, Op: op, Token: 7},
				history.Event{At: at(to), Kind: history.Release, Op: op})
		}
		return append(events, history.Event{At: at(to), Kind: history.GiveUp, Op: op})
	}
	rows := func(told string, ops int) map[string]bool {
		drawn := map[string]bool{}
		for op := range ops + 1 {
			drawn[fmt.Sprint(op)] = strings.Contains(told, fmt.Sprintf(" n%d, ", op))
		}
		return drawn
	}
	var events []history.Event
	// Each begins when the one before ends, beside one that goes on: two rows, and no more.
	events = append(events, bar(1, 0, 90, true)...)
	for n := range 8 {
		events = append(events, bar(int64(2+n), 10*n, 10*n+10, n%2 == 0)...)
	}
	p := draw(t, events, timeline.Options{})
	require.NotContains(t, p.told(), "client 1/worker 1 +")
	require.Equal(t, 2, p.heights(), "rows")
	// In the other order they do not fit.
	events = nil
	for n := range 6 {
		events = append(events, bar(int64(1+n), n, 50, n == 5)...)
	}
	p = draw(t, events, timeline.Options{})
	require.Contains(t, p.told(), "client 1/worker 1 +1")
	require.Equal(t, 4, p.heights(), "rows")
	require.True(t, rows(p.told(), 6)["6"], "a tenure is left out")
}
