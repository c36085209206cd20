package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// tokenOrder checks what I2 says of callers alone, without the watch: whoever has entered after a handle was returned
// gets a larger token.
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
	// At one time those who enter come before those who are granted, as the alphabet has it: nothing is known of their order.
	slices.SortStableFunc(moments, func(x, y moment) int {
		return cmp.Or(cmp.Compare(x.At, y.At), cmp.Compare(x.Kind, y.Kind))
	})
	highest := map[string]*history.Event{}                // the grant with the highest token so far, by name
	before := make(map[*acquisition]*history.Event)       // what that was when it entered
	tokens := map[string]map[fence.Token]*history.Event{} // all there were, by name
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
			c.violation(Violation{"I2", "tokens", name, fmt.Sprintf("token %d is none", m.Token), show(m.Event)})
		case same != nil:
			c.violation(Violation{"I2", "tokens", name, fmt.Sprintf("token %d was granted twice", m.Token), show(same, m.Event)})
		case old != nil && m.Token < old.Token:
			c.violation(Violation{
				"I2", "tokens", name, fmt.Sprintf("token %d was granted to one that entered after %d was", m.Token, old.Token),
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
