package model_test

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasefence/leasefence/fence"
)

// call is one of those that are made side by side.
type call struct {
	verb     string
	resource string
	token    fence.Token

	err       error
	from, to  int // moments, by a counter
	wrote     bool
	moment    int // of the write
	atTheTime fence.Token
}

var calls = rapid.Custom(func(t *rapid.T) *call {
	return &call{
		verb:     rapid.SampledFrom([]string{"Claim", "Check", "Do", "Load"}).Draw(t, "verb"),
		resource: resources.Draw(t, "resource"), token: tokens.Draw(t, "token"),
	}
})

// moments counts them: of two that follow each other the later has the larger number.
type moments struct {
	mu sync.Mutex
	n  int
}

func (m *moments) next() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	return m.n
}

// Side by side, whatever the order: writes for one resource are in the order of their tokens; who is refused was older
// than a token that had been accepted; who is accepted was not older than any that had been before it began; and the
// marks at the end are the largest tokens.
func TestGuard_modelSideBySide(t *testing.T) {
	manyTimes(t, func(t *rapid.T) {
		m := make(model)
		for range rapid.IntRange(0, 2).Draw(t, "marks before") {
			m.take(resources.Draw(t, "resource"), tokens.Draw(t, "token"))
		}
		before := maps.Clone(m)
		all := rapid.SliceOfN(calls, 2, 8).Draw(t, "calls")
		var g fence.Guard
		require.NoError(t, g.Load(before))
		sideBySide(&g, all)

		for _, c := range all {
			m.take(c.resource, c.token)
		}
		require.Equal(t, map[string]fence.Token(m), g.Marks())
		for _, c := range all {
			requireSound(t, c, all, before)
		}
		requireInOrder(t, all)
	})
}

// sideBySide makes the calls at once and notes what came of each.
func sideBySide(g *fence.Guard, all []*call) {
	var clock moments
	var running sync.WaitGroup
	var begun atomic.Int64
	start := make(chan struct{})
	for _, c := range all {
		running.Go(func() {
			<-start
			c.from = clock.next()
			begun.Add(1)
			switch c.verb {
			case "Claim":
				c.err = g.Claim(c.resource, c.token)
			case "Check":
				c.err = g.Check(c.resource, c.token)
			case "Load":
				c.err = g.Load(map[string]fence.Token{c.resource: c.token})
			case "Do":
				c.err = g.Do(c.resource, c.token, func() error {
					for int(begun.Load()) < len(all) { // so that others wait for this function: a pass does not depend on it
						runtime.Gosched()
					}
					runtime.Gosched()
					c.wrote, c.moment, c.atTheTime = true, clock.next(), g.Marks()[c.resource]
					return nil
				})
			}
			c.to = clock.next()
		})
	}
	close(start)
	running.Wait()
}

// requireSound looks at one call among the others.
func requireSound(t *rapid.T, c *call, all []*call, before model) {
	t.Helper()
	if c.verb == "Load" {
		require.NoError(t, c.err)
		return
	}
	require.Equal(t, c.verb == "Do" && c.err == nil, c.wrote)
	newest, ended := before[c.resource], before[c.resource] // of all that may, and of those that must, have been accepted
	for _, o := range all {
		if o.resource != c.resource || o == c {
			continue
		}
		if o.from < c.to {
			newest = max(newest, o.token)
		}
		if o.to < c.from && o.err == nil {
			ended = max(ended, o.token)
		}
	}
	if c.err == nil {
		require.GreaterOrEqual(t, c.token, ended, "%+v was accepted", c)
		return
	}
	stale, ok := errors.AsType[*fence.StaleError](c.err)
	require.True(t, ok, "%v", c.err)
	require.Equal(t, c.token, stale.Token)
	require.Greater(t, stale.Highest, c.token)
	require.LessOrEqual(t, stale.Highest, newest, "nobody has brought that token")
	require.GreaterOrEqual(t, stale.Highest, ended)
}

// requireInOrder looks at the writes: the mark is the writer's token while it writes, so no newer one came before.
func requireInOrder(t *rapid.T, all []*call) {
	t.Helper()
	writes := slices.DeleteFunc(slices.Clone(all), func(c *call) bool { return !c.wrote })
	slices.SortFunc(writes, func(a, b *call) int { return a.moment - b.moment })
	last := make(model)
	for _, w := range writes {
		require.Equal(t, w.token, w.atTheTime, "the mark while it wrote")
		require.GreaterOrEqual(t, w.token, last[w.resource], "a stale write")
		last[w.resource] = w.token
	}
}
