package timeline_test

import (
	"fmt"
	"regexp"
	"strconv"
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
		history.Event{At: at(60), Kind: history.Enter, Op: 3, Actor: "client 3/worker 1", Name: "b"},
		history.Event{At: at(70), Kind: history.GiveUp, Op: 3, Error: "no more"},
		// Another waits all the time, or there would be nothing to draw.
		history.Event{At: at(1), Kind: history.Enter, Op: 2, Actor: "client 2/worker 1", Name: "a"},
	)
	const wait, hold, fault, sight = "waited for a, 1s to 3s", "held a, 3s to 5s", "partition: elsewhere, 1.5s to 4.5s", "saw token 7 at 3.5s"
	const inVain = "client 3/worker 1 waited for b, 6s to 7s, gave up"
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
		{51, 59, none},
		{51, 61, inVain + none},
		{62, 63, inVain + none},
		{69, 80, inVain + none},
		{71, 80, none},
	} {
		told := draw(t, events, timeline.Options{From: at(part.from), To: at(part.to)}).told()
		for _, what := range []string{wait, hold, fault, sight, inVain, one, none} {
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
	const scale = (1600 - 190 - 24) / 10.0                  // of a second
	for _, width := range []float64{1 * scale, 3 * scale} { // what is known, and what is not
		require.Contains(t, p.page, fmt.Sprintf(`width="%.1f"`, width))
	}
	// Where a part is held all the time, the bar goes from one end to the other.
	p = draw(t, events, timeline.Options{From: at(33), To: at(38)})
	require.Regexp(t, fmt.Sprintf(`<rect x="190.0" y="[0-9.]+" width="%.1f" [^>]*><title>client 1/worker 1 held a`, 10*scale), p.page)
}

var barY = regexp.MustCompile(`<rect x="[0-9.]+" y="([0-9.]+)"[^>]*><title>`)

// rows is how many rows of bars the only actor has.
func rows(t *testing.T, p picture) int {
	t.Helper()
	_, actors, found := strings.Cut(p.page, ">ACTORS<")
	require.True(t, found)
	used := map[int]bool{}
	lowest := 0.0
	for _, m := range barY.FindAllStringSubmatch(actors, -1) {
		y, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		if lowest == 0 || y < lowest {
			lowest = y
		}
	}
	for _, m := range barY.FindAllStringSubmatch(actors, -1) {
		y, _ := strconv.ParseFloat(m[1], 64)
		used[int((y-lowest+2)/23)] = true // a wait's bar is 2 lower in its row
	}
	return len(used)
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
	var events []history.Event
	// Each begins when the one before ends, beside one that goes on: two rows, and no more.
	events = append(events, bar(1, 0, 90, true)...)
	for n := range 8 {
		events = append(events, bar(int64(2+n), 10*n, 10*n+10, n%2 == 0)...)
	}
	p := draw(t, events, timeline.Options{})
	require.NotContains(t, p.told(), "client 1/worker 1 +")
	require.Equal(t, 2, rows(t, p), "rows")
	// In the other order they do not fit.
	events = nil
	for n := range 6 {
		events = append(events, bar(int64(1+n), n, 50, n == 5)...)
	}
	p = draw(t, events, timeline.Options{})
	require.Contains(t, p.told(), "client 1/worker 1 +2", "the fifth, and that of the tenure")
	require.Equal(t, 4, rows(t, p), "rows")
	require.Contains(t, strings.SplitN(p.page, ">ACTORS<", 2)[1], "held n6, ", "a tenure is left out")
}

// Requests that cannot be told from each other share a mark; those of two names do not, nor do refused ones and others.
func TestDraw_marks(t *testing.T) {
	request := func(n int, at time.Duration, name string, outcome history.Outcome) []history.Event {
		return []history.Event{
			{At: at, Kind: history.Send, Request: int64(n), Actor: "client 1/worker 1", Name: name},
			{At: at, Kind: history.Apply, Request: int64(n), Name: name, Token: 7, Verb: history.Write, Outcome: outcome},
		}
	}
	for _, c := range []struct {
		what              string
		accepted, refused int
		second            []history.Event
	}{
		{"another", 1, 0, request(2, at(35)+time.Millisecond, "a", history.OK)},
		{"another, later", 2, 0, request(2, at(37), "a", history.OK)},
		{"another name", 2, 0, request(2, at(35)+time.Millisecond, "b", history.OK)},
		{"refused", 1, 1, request(2, at(35)+time.Millisecond, "a", history.Refused)},
	} {
		events := append(story(request(1, at(35), "a", history.OK)...), c.second...)
		none := draw(t, story(), timeline.Options{})
		p := draw(t, events, timeline.Options{})
		require.Equal(t, c.accepted, p.elements["circle"]-none.elements["circle"], c.what)
		require.Equal(t, c.refused, p.elements["title"]-none.elements["title"], c.what)
	}
}

// Locks come before elections, and each by its number.
func TestDraw_order(t *testing.T) {
	var events []history.Event
	for n, name := range []string{"b10", "b9", "leader", "z"} {
		e := history.Event{At: at(n), Kind: history.Enter, Op: int64(n), Actor: "client 1/worker 1", Name: name}
		if name == "leader" {
			e.Verb = history.Campaign
		}
		events = append(events, e)
	}
	p := draw(t, append(events, history.Event{At: at(20), Kind: history.Note}), timeline.Options{})
	last := -1
	for _, name := range []string{"b9", "b10", "z", "leader (election)"} { // also those that nobody holds
		n := strings.Index(p.page, ">"+name+"<")
		require.Greater(t, n, last, name)
		last = n
	}
}
