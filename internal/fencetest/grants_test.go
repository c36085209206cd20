package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// call is what a resource is asked.
type call struct {
	token         fence.Token
	reads, claims bool
}

// rule is what a resource makes of a call.
type rule func(m *Marks, c call) error

// right is the rule of every store.
func right(m *Marks, c call) error {
	after, err := m.After(Verb{Reads: c.reads}, c.token, "", false)
	*m = after
	return err
}

// oneMark has a mark that writers raise, and readers if raised says so.
func oneMark(raised bool) rule {
	return func(m *Marks, c call) error {
		if c.token < m.Write {
			return &fence.StaleError{Token: c.token, Highest: m.Write, Read: c.reads}
		}
		if !c.reads || raised {
			m.Write = c.token
		}
		return nil
	}
}

// verbs are those of a store in memory. Without types, every verb takes every token.
func verbs(r rule, typed bool) Verbs {
	all := map[string]*Marks{}
	verb := func(reads, claims bool) func(context.Context, string) error {
		return func(ctx context.Context, resource string) error {
			t, _ := fence.FromContext(ctx)
			if read, ok := fence.ReadFromContext(ctx); typed && reads || !typed && ok {
				t = fence.Token(read)
			}
			if !t.Valid() {
				return fence.ErrInvalidToken
			}
			if all[resource] == nil {
				all[resource] = new(Marks)
			}
			return r(all[resource], call{t, reads, claims})
		}
	}
	return Verbs{Claim: verb(false, true), Check: verb(false, false), ClaimRead: verb(true, true), CheckRead: verb(true, false)}
}

// faults plays histories with a fixed seed and counts those that have found a fault.
func faults(t *testing.T, v Verbs) (found map[error]int, tally map[string]int) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	found, tally = map[error]int{}, map[string]int{}
	for i := range 4 * fewHistories {
		err := newHistory(v, random, fmt.Sprint(i), tally).play(t.Context())
		if err == nil {
			continue
		}
		for _, fault := range []error{errLive, errNoCause, errStale, errFields, errMode, errOther} {
			if errors.Is(err, fault) {
				found[fault]++
			}
		}
	}
	return found, tally
}

func TestGrants_acceptsTheRule(t *testing.T) {
	found, tally := faults(t, verbs(right, true))
	require.Empty(t, found)
	require.Len(t, tally, 5)
	for outcome, n := range tally {
		require.Greater(t, n, 100, "too few to tell anything: %s", outcome)
	}
}

// Each is wrong in the way that is named, and some also in others. The first three are those of the design that were simulated.
func TestGrants_findsWrongRules(t *testing.T) {
	claimsToWrite := func(c call) bool { return !c.reads && c.claims }
	writes := func(c call) bool { return !c.reads && !c.claims }
	claimsToRead := func(c call) bool { return c.reads && c.claims }
	reads := func(c call) bool { return c.reads && !c.claims }
	// when is another rule for some calls.
	when := func(applies func(call) bool, other rule) rule {
		return func(m *Marks, c call) error {
			if applies(c) {
				return other(m, c)
			}
			return right(m, c)
		}
	}
	forgets := func(m *Marks, c call) error { // raises no mark
		copied := *m
		return right(&copied, c)
	}
	blind := func(m *Marks, c call) error { // does not look at the read mark
		seen := Marks{Write: m.Write}
		err := right(&seen, c)
		m.Write = seen.Write
		return err
	}
	deaf := func(m *Marks, c call) error { // does not look at the write mark
		m.Read = max(m.Read, c.token)
		return nil
	}
	says := func(change func(*fence.StaleError)) rule { // another refusal
		return func(m *Marks, c call) error {
			err := right(m, c)
			if stale, ok := errors.AsType[*fence.StaleError](err); ok {
				change(stale)
			}
			return err
		}
	}
	strict := func(m *Marks, c call) error { // refuses who comes again
		if c.token == m.Write {
			return &fence.StaleError{Token: c.token, Highest: m.Write}
		}
		return right(m, c)
	}
	text := func(m *Marks, c call) error { // compares as text
		if fmt.Sprint(int64(c.token)) < fmt.Sprint(int64(m.Write)) {
			return &fence.StaleError{Token: c.token, Highest: m.Write, Read: c.reads}
		}
		return right(m, c)
	}
	jealous := func(m *Marks, c call) error { // a reader that is refused by a newer one
		if c.reads && c.token < m.Read {
			return &fence.StaleError{Token: c.token, Highest: m.Read, Read: true, ByReader: true}
		}
		return right(m, c)
	}
	silent := says(func(e *fence.StaleError) { e.Highest = 0 })
	lowers := func(m *Marks, c call) error { // the read mark goes back
		err := right(m, c)
		if err == nil && c.reads {
			m.Read = c.token
		}
		return err
	}
	for name, c := range map[string]struct {
		rule    rule
		untyped bool
		fault   error
	}{
		"one mark, not raised by readers, no types":          {oneMark(false), true, errStale},
		"one mark, raised by readers, no types":              {oneMark(true), true, errLive},
		"one mark, not raised by readers, typed":             {oneMark(false), false, errStale},
		"a reader's token writes":                            {right, true, errMode},
		"a claim to write raises no mark":                    {when(claimsToWrite, forgets), false, errStale},
		"a write raises no mark":                             {when(writes, forgets), false, errStale},
		"a claim to read raises no mark":                     {when(claimsToRead, forgets), false, errStale},
		"a read raises no mark":                              {when(reads, forgets), false, errStale},
		"a claim to write does not look at the read mark":    {when(claimsToWrite, blind), false, errStale},
		"a write does not look at the read mark":             {when(writes, blind), false, errStale},
		"a claim to read does not look at the write mark":    {when(claimsToRead, deaf), false, errStale},
		"a read does not look at the write mark":             {when(reads, deaf), false, errStale},
		"the read mark goes back":                            {lowers, false, errStale},
		"a writer that comes again is refused":               {strict, false, errLive},
		"a reader is refused by a newer one":                 {jealous, false, errLive},
		"tokens are compared as text":                        {text, false, errLive},
		"a refusal says nothing of the mark":                 {silent, false, errFields},
		"a refusal does not say that it is a reader's":       {says(func(e *fence.StaleError) { e.Read = false }), false, errFields},
		"a refusal does not say that the mark is of readers": {says(func(e *fence.StaleError) { e.ByReader = false }), false, errFields},
		"a refusal says that every mark is of readers":       {says(func(e *fence.StaleError) { e.ByReader = true }), false, errFields},
		"a refusal has another mark":                         {says(func(e *fence.StaleError) { e.Highest++ }), false, errFields},
		"a refusal has another token":                        {says(func(e *fence.StaleError) { e.Token++ }), false, errFields},
		"a refusal that is neither":                          {func(*Marks, call) error { return fence.ErrStale }, false, errOther},
	} {
		t.Run(name, func(t *testing.T) {
			found, _ := faults(t, verbs(c.rule, !c.untyped))
			require.Positive(t, found[c.fault], "%v", found)
		})
	}
}
