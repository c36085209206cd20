package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasefence/leasefence/fence"
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
	highest := map[string]*history.Event{}                // the grant with the highest token so far, by name
	before := make(map[*acquisition]*history.Event)       // that grant when the acquisition entered
	tokens := map[string]map[fence.Token]*history.Event{} // all grants so far, by name
	compared := 0
	for _, m := range moments {
		if m.Kind == history.Enter {
			before[m.a] = highest[m.a.name()]
			continue
		}
		name, old := m.a.name(), before[m.a]
		delete(before, m.a)
		if tokens[name] == nil {
			tokens[name] = map[fence.Token]*history.Event{}
		}
		same := tokens[name][m.Token]
		compared++
		switch {
		case !m.Token.Valid():
			c.violation(Violation{"I2", "tokens", name, fmt.Sprintf("token %d is not valid", m.Token), show(m.Event)})
		case same != nil:
			c.violation(Violation{"I2", "tokens", name, fmt.Sprintf("token %d was granted twice", m.Token), show(same, m.Event)})
		case old != nil && m.Token < old.Token:
			c.violation(Violation{
				"I2", "tokens", name, fmt.Sprintf("token %d was granted to an acquisition that entered after the grant of %d", m.Token, old.Token),
				show(old, m.a.enter, m.Event),
			})
		}
		tokens[name][m.Token] = m.Event
		if highest[name] == nil || m.Token > highest[name].Token {
			highest[name] = m.Event
		}
	}
	c.count("tokens compared with each other", compared)
}
