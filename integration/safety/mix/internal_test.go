package mix

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

func TestTally_countsWhatIsFencedAlone(t *testing.T) {
	tally := newTally()
	for _, e := range []history.Event{
		{Kind: history.Apply, Name: "a", Verb: history.Write, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.Write, Outcome: history.Refused},
		{Kind: history.Apply, Name: "a", Verb: history.Claim, Outcome: history.Refused},
		{Kind: history.Apply, Name: "a", Verb: history.Read, Outcome: history.OK},
		{Kind: history.Apply, Name: "a" + history.UnfencedMark, Verb: history.Write, Outcome: history.OK},
	} {
		tally.add(e)
	}
	c := tally.counts()
	require.Equal(t, 1, c.Writes)
	require.Equal(t, 1, c.Refused)
}

func TestTally_knowsWhoWaitsAndHolds(t *testing.T) {
	tally := newTally()
	for op := range int64(3) {
		tally.add(history.Event{Kind: history.Enter, Op: op, Actor: "holder 1/worker 0", Name: "a"})
	}
	tally.add(history.Event{Kind: history.Grant, Op: 0, Name: "a"})
	tally.add(history.Event{Kind: history.GiveUp, Op: 1})
	waiters, changed := tally.waiting()
	require.Len(t, waiters, 1)
	held, _ := tally.held("holder 1/")
	require.Len(t, held, 1)
	held, _ = tally.held("holder 2/")
	require.Empty(t, held)

	tally.forget("holder 1")
	<-changed
	waiters, _ = tally.waiting()
	require.Empty(t, waiters)
	held, _ = tally.held("")
	require.Empty(t, held)
}

func TestMonitor_countsOverRestarts(t *testing.T) {
	m := newMonitor(nil, nil, nil)
	for _, n := range []int{2, 5, 1, 1, 3} { // restarted after 5
		m.count("m0", n)
	}
	m.count("m1", 10)
	_, expired := m.counts()
	require.Equal(t, 5+3+10, expired)
}

func TestDeck_dealsEachKindOnceBeforeAnyAgain(t *testing.T) {
	d := &deck{rng: rand.New(rand.NewPCG(1, 2)), kinds: networkFaults()}
	for range 3 {
		dealt := map[string]bool{}
		for range d.kinds {
			dealt[d.deal().name] = true
		}
		require.Len(t, dealt, len(d.kinds))
	}
}

func TestScaffold_saysWhatFailed(t *testing.T) {
	var s scaffold
	cleaned := false
	err := s.try(func() {
		s.Cleanup(func() { cleaned = true })
		require.NoError(&s, errors.New("no port"))
		t.Error("goes on")
	})
	require.ErrorContains(t, err, "no port")
	require.NoError(t, s.try(func() {}))
	require.True(t, s.clean())
	require.True(t, cleaned)
}

func TestScaffold_leavesBehindWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scaffold
		cleaned, release := false, make(chan struct{})
		s.Cleanup(func() { cleaned = true })
		s.Cleanup(func() { <-release })
		require.False(t, s.clean())
		require.True(t, cleaned)
		close(release)
	})
}

func TestStore_comparesTheFencedWithItsTwin(t *testing.T) {
	tape := newTape(t.TempDir())
	require.NoError(t, tape.begin(1))
	n := names{Hot: []string{"r"}}
	s, err := newStore(tape, n, nil, Saboteur{})
	require.NoError(t, err)
	ask := func(verb history.Verb, method string, token fence.Token, id string) int {
		q := url.Values{"name": {"r"}, "verb": {string(verb)}, "value": {"v" + id}, "request": {id}}
		r := httptest.NewRequest(method, "/?"+q.Encode(), http.NoBody)
		r.Header.Set("Fencing-Token", token.String())
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	require.Equal(t, http.StatusOK, ask(history.Claim, http.MethodPost, 7, "1"))
	require.Equal(t, http.StatusOK, ask(history.Write, http.MethodPost, 7, "2"))
	require.Equal(t, http.StatusPreconditionFailed, ask(history.Write, http.MethodPost, 6, "3"))
	require.Equal(t, "v2", s.items["r"].fenced.value)
	require.Equal(t, "v3", s.items["r"].twin.value)

	path, err := tape.end()
	require.NoError(t, err)
	events, err := readPart(path)
	require.NoError(t, err)
	var got []history.Outcome
	for _, e := range events {
		require.Equal(t, history.Apply, e.Kind)
		got = append(got, e.Outcome)
	}
	require.Equal(t, []history.Outcome{history.OK, history.OK, history.OK, history.OK, history.Refused}, got)
	require.EqualValues(t, 7, events[4].Highest)
}

func TestPeerStage_seesTwoAtATime(t *testing.T) {
	p := newPeerStage(nil, time.Second)
	lost, never := make(chan struct{}), make(chan struct{})
	first := p.granted(lost, "a")
	p.write(first, "a")
	p.over(first)
	require.Zero(t, p.report.Overlaps)

	second := p.granted(lost, "a")
	third := p.granted(never, "a")
	require.Equal(t, 1, p.report.Overlaps)
	p.write(third, "a")
	p.write(second, "a")
	require.Equal(t, 1, p.report.StaleWrites)
	p.over(second)
	require.Positive(t, p.report.LongestOverlap)

	fourth := p.granted(lost, "b")
	close(lost)
	require.True(t, fourth.told())
	p.granted(never, "b")
	require.Equal(t, 1, p.report.Overlaps, "who has been told does not count")
}
