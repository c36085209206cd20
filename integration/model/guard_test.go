package model_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasefence/leasefence/fence"
)

var errDisk = errors.New("disk full")

// guarded is a Guard and its model.
type guarded struct {
	g *fence.Guard
	m model
}

// One call after the other, of every kind and also inside one another, restarts included.
func TestGuard_model(t *testing.T) {
	manyTimes(t, func(t *rapid.T) {
		s := &guarded{new(fence.Guard), make(model)}
		t.Repeat(map[string]func(*rapid.T){
			"":            s.check,
			"Claim":       func(t *rapid.T) { s.verb(t, (*fence.Guard).Claim) },
			"Check":       func(t *rapid.T) { s.verb(t, (*fence.Guard).Check) },
			"Do":          s.do,
			"Do fails":    s.doFails,
			"Do panics":   s.doPanics,
			"Do in Do":    s.doInDo,
			"Do of nil":   s.doNil,
			"Load":        s.load,
			"restart":     s.restart,
			"change copy": func(*rapid.T) { clear(s.g.Marks()) },
		})
	})
}

// check is called after every step.
func (s *guarded) check(t *rapid.T) {
	require.Equal(t, map[string]fence.Token(s.m), s.g.Marks())
}

func requireVerdict(t *rapid.T, want verdict, err error) {
	t.Helper()
	switch {
	case want.invalid:
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.NotErrorIs(t, err, fence.ErrStale)
	case want.stale != nil:
		require.Equal(t, error(want.stale), err)
	default:
		require.NoError(t, err)
	}
}

func draw(t *rapid.T) (resource string, token fence.Token) {
	return resources.Draw(t, "resource"), anyTokens.Draw(t, "token")
}

func (s *guarded) verb(t *rapid.T, call func(*fence.Guard, string, fence.Token) error) {
	resource, token := draw(t)
	requireVerdict(t, s.m.take(resource, token), call(s.g, resource, token))
}

func (s *guarded) do(t *rapid.T) {
	resource, token := draw(t)
	ran := false
	want := s.m.take(resource, token)
	err := s.g.Do(resource, token, func() error {
		ran = true
		require.Equal(t, token, s.g.Marks()[resource], "raised before the write")
		return nil
	})
	requireVerdict(t, want, err)
	require.Equal(t, want.accepted(), ran)
}

func (s *guarded) doFails(t *rapid.T) {
	resource, token := draw(t)
	want := s.m.take(resource, token)
	err := s.g.Do(resource, token, func() error { return errDisk })
	if want.accepted() {
		require.Equal(t, errDisk, err)
		return
	}
	requireVerdict(t, want, err)
}

func (s *guarded) doPanics(t *rapid.T) {
	resource, token := draw(t)
	want := s.m.take(resource, token)
	if want.accepted() {
		require.PanicsWithError(t, errDisk.Error(), func() { _ = s.g.Do(resource, token, func() error { panic(errDisk) }) })
		return
	}
	requireVerdict(t, want, s.g.Do(resource, token, func() error { panic(errDisk) }))
}

// doInDo calls inside a function of Do what need not wait for it: for the same resource with no newer token, and for
// another one at all.
func (s *guarded) doInDo(t *rapid.T) {
	resource, token := resources.Draw(t, "resource"), tokens.Draw(t, "token")
	other, inner := draw(t)
	want := s.m.take(resource, token)
	err := s.g.Do(resource, token, func() error {
		if other == resource {
			inner = min(inner, token)
			requireVerdict(t, s.m.take(resource, inner), s.g.Claim(resource, inner))
			requireVerdict(t, s.m.take(resource, inner), s.g.Check(resource, inner))
			return nil
		}
		requireVerdict(t, s.m.take(other, inner), s.g.Do(other, inner, func() error { return nil }))
		return nil
	})
	requireVerdict(t, want, err)
}

func (s *guarded) doNil(t *rapid.T) {
	resource, token := draw(t)
	require.ErrorContains(t, s.g.Do(resource, token, nil), "fn is nil")
}

// load is all or nothing, and never lowers.
func (s *guarded) load(t *rapid.T) {
	marks := rapid.MapOfN(resources, anyTokens, 0, 3).Draw(t, "marks")
	err := s.g.Load(marks)
	for _, token := range marks {
		if !token.Valid() {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			return
		}
	}
	require.NoError(t, err)
	for resource, token := range marks {
		s.m.take(resource, token)
	}
}

// restart goes on with what was saved, and with what has come since from those who did not wait.
func (s *guarded) restart(t *rapid.T) {
	saved := s.g.Marks()
	s.g = new(fence.Guard)
	if rapid.Bool().Draw(t, "a call before Load") {
		fresh := make(model)
		resource, token := draw(t)
		requireVerdict(t, fresh.take(resource, token), s.g.Claim(resource, token))
		for resource, token := range fresh {
			s.m.take(resource, token)
		}
	}
	require.NoError(t, s.g.Load(maps.Clone(saved)))
}
