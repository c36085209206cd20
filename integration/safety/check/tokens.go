package check

import (
	"cmp"
	"slices"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// tokenOrder checks the part of I2 that needs no watch: an acquisition that enters after a handle was returned gets a
// larger token.
func (c *checker) tokenOrder() {
	type moment struct {
		*history.Event
		a *acquisition
	}
	var moments []moment
	for _, a := range c.ops {
		if a.grant != nil {
			moments = append(moments, moment{a.enter, a}, moment{a.grant, a})
		}
	}
	// The order of two events at the same time is not known. Enter events are sorted before grants, so the acquisition
	// that enters is not expected to have the larger token.
	slices.SortStableFunc(moments, func(x, y moment) int {
		return cmp.Or(cmp.Compare(x.At, y.At), cmp.Compare(x.Kind, y.Kind))
	})
	highest := map[string]*history.Event{}      // the grant with the highest token so far, by name
	before := map[*acquisition]*history.Event{} // that grant when the acquisition entered
	for _, m := range moments {
		name := m.a.name()
		old := before[m.a]
		switch {
		case m.Kind == history.Enter:
			before[m.a] = highest[name]
			continue
		case !m.Token.Valid():
			c.bad("I2", name, show(m.Event), "token %d is not valid", m.Token)
		case old != nil && m.Token < old.Token:
			c.bad("I2", name, show(old, m.a.enter, m.Event),
				"token %d was granted to an acquisition that entered after the grant of %d", m.Token, old.Token)
		}
		if highest[name] == nil || m.Token > highest[name].Token {
			highest[name] = m.Event
		}
	}
}
