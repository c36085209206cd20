package mix

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
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
		{Kind: history.Apply, Name: "a", Verb: history.ClaimRead, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.CheckRead, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.CheckRead, Outcome: history.Refused},
	} {
		tally.add(e)
	}
	c := tally.counts()
	require.Equal(t, 1, c.Writes)
	require.Equal(t, 1, c.Refused)
	require.Equal(t, 1, c.StaleReads)
}

func TestTally_knowsWhoWaitsAndHolds(t *testing.T) {
	tally := newTally()
	for op := range int64(3) {
		tally.add(history.Event{Kind: history.Enter, Op: op, Actor: "holder 1/worker 0", Name: "a"})
	}
	tally.add(history.Event{Kind: history.Enter, Op: 3, Actor: "client 1/worker 0", Name: "a", Verb: history.TryRLock})
	tally.add(history.Event{Kind: history.Grant, Op: 0, Name: "a"})
	tally.add(history.Event{Kind: history.Grant, Op: 3, Name: "a"})
	tally.add(history.Event{Kind: history.GiveUp, Op: 1})
	require.Equal(t, 2, tally.counts().Acquisitions)
	require.Equal(t, 1, tally.counts().Shared)
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
	require.Len(t, held, 1)
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

// A reader's token is held to the writers' mark and raises that of readers; the twin hears of neither its claims nor its reads.
func TestStore_servesReaders(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { servesReaders(t, names{Hot: []string{"r"}}, nil) })
	t.Run("in SQL", func(t *testing.T) {
		d, err := openDatabase(t.Context(), t.TempDir())
		require.NoError(t, err)
		defer func() { require.NoError(t, d.close()) }()
		servesReaders(t, names{Cold: []string{"r"}}, d)
	})
}

func servesReaders(t *testing.T, n names, d *database) {
	t.Helper()
	tape := newTape(t.TempDir())
	require.NoError(t, tape.begin(1))
	s, err := newStore(tape, n, d, Saboteur{})
	require.NoError(t, err)
	ask := func(verb history.Verb, token fence.Token) (int, string) {
		q := url.Values{"name": {"r"}, "verb": {string(verb)}, "value": {"of " + token.String()}}
		r := httptest.NewRequest(http.MethodPost, "/?"+q.Encode(), http.NoBody)
		if verb.OfReader() {
			q.Del("value")
			r = httptest.NewRequest(http.MethodGet, "/?"+q.Encode(), http.NoBody)
			r.Header.Set(httpfence.ReadHeader, token.String())
		} else {
			r.Header.Set("Fencing-Token", token.String())
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, row := range []struct {
		verb  history.Verb
		token fence.Token
		code  int
	}{
		{history.Write, 5, http.StatusOK},
		{history.ClaimRead, 4, http.StatusPreconditionFailed},
		{history.ClaimRead, 8, http.StatusOK},
		{history.Write, 7, http.StatusPreconditionFailed},
		{history.ClaimRead, 7, http.StatusOK},
		{history.Write, 9, http.StatusOK},
		{history.CheckRead, 8, http.StatusPreconditionFailed},
	} {
		code, _ := ask(row.verb, row.token)
		require.Equal(t, row.code, code, "%s %d", row.verb, row.token)
	}
	code, got := ask(history.CheckRead, 10)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "of 9", got)

	path, err := tape.end()
	require.NoError(t, err)
	events, err := readPart(path)
	require.NoError(t, err)
	var refusers []fence.Token
	for _, e := range events {
		if e.Outcome == history.Refused {
			refusers = append(refusers, e.Highest)
		}
		require.False(t, e.Verb.OfReader() && e.Name != "r", "%v", e)
	}
	require.Equal(t, []fence.Token{5, 8, 9}, refusers)
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
