package model_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/storetest"
)

func TestMain(m *testing.M) {
	// What is given on the command line comes after this, and counts.
	for name, value := range map[string]string{"rapid.checks": "100", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	storetest.Main(m)
}

// manyTimes is for properties that cost next to nothing.
func manyTimes(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	for range 10 {
		rapid.Check(t, property)
	}
}

// model is what a resource does with tokens: its mark for each name, the highest token that it has accepted.
type model map[string]fence.Token

// verdict is what has to become of a token.
type verdict struct {
	invalid bool
	stale   *fence.StaleError // nil: it is accepted
}

// judge says what becomes of a token, and changes nothing.
func (m model) judge(resource string, t fence.Token) verdict {
	switch mark := m[resource]; {
	case !t.Valid():
		return verdict{invalid: true}
	case t < mark:
		return verdict{stale: &fence.StaleError{Resource: resource, Token: t, Highest: mark}}
	default:
		return verdict{}
	}
}

// take judges a token that, if it is accepted, is the mark from then on.
func (m model) take(resource string, t fence.Token) verdict {
	v := m.judge(resource, t)
	if v.accepted() {
		m[resource] = t
	}
	return v
}

func (v verdict) accepted() bool { return !v.invalid && v.stale == nil }

// era is the smallest token of era 1, less the revision.
const era = fence.Token(1) << 48

// tokens lie close together, so that they meet, in the first and the last of all eras.
var tokens = rapid.Custom(func(t *rapid.T) fence.Token {
	first := rapid.SampledFrom([]fence.Token{0, era, 32767 * era}).Draw(t, "era")
	return first + fence.Token(rapid.IntRange(1, 9).Draw(t, "revision"))
})

// anyTokens has some in it that are not valid.
var anyTokens = rapid.OneOf(tokens, tokens, tokens, rapid.SampledFrom([]fence.Token{0, -1, era, -1 << 63, 1<<63 - 1, era - 1}))

// resources are few, and begin alike.
var resources = rapid.SampledFrom([]string{"a", "a/b", "A", "a "})
