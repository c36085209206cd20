package check

import (
	"fmt"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// returns checks that Do and Run release after their function has returned: until then only an operator or the end of
// the lease deletes the key. A holder that lost the lock learns it from the context or from the error.
func (c *checker) returns() {
	looked := 0
	for _, a := range c.ops {
		if a.grant == nil || a.release == nil || a.release.Verb != history.Returned {
			continue
		}
		k := c.keyOf(a)
		if k == nil || k.del == nil {
			continue
		}
		looked++
		lost := a.released == nil || a.released.Outcome == history.Failed || a.lost != nil && reasonIn(a.lost.Error) != 0
		if k.del.At < a.release.At && !k.operated && !lost {
			c.violation(Violation{
				"I3", "release", a.name(),
				fmt.Sprintf("key %q was deleted %v before the function under the lock returned", k.put.Key, a.release.At-k.del.At),
				show(k.put, a.grant, a.lost, k.del, a.release, a.released),
			})
		}
	}
	c.count("functions compared with the deletion of their keys", looked)
}
