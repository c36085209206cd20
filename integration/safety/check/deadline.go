package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// punctual is how long after the deadline the timer may end a context, in a process that runs.
const punctual = 500 * time.Millisecond

// deadlines checks that no handle outlives its lease's deadline. A handle that is asked compares the clock itself, so it is
// never live after that, whatever the timer does. Contexts are looked at alone only in a process that notes when it does not run.
func (c *checker) deadlines() {
	ends := c.leaseEnds()
	looked := 0
	for _, a := range c.ops {
		if a.grant == nil || a.enter.Verb == history.Mutex { // which etcd holds for as long as the lease lives there
			continue
		}
		k := c.keyOf(a)
		if k == nil || ends[k.put.Lease] == 0 {
			continue
		}
		looked++
		end, live := ends[k.put.Lease], a.lastAsked
		if live == nil || live.At <= end {
			if live = a.lastLive; live == nil || live.At <= end+punctual || c.stalls.touch(end, live.At) {
				continue
			}
		}
		c.violation(Violation{
			"I3", "deadline", a.name(),
			fmt.Sprintf("the handle of token %d was live %v after its deadline, %v", a.token(), live.At-end, end),
			show(a.grant, live, a.lost),
		})
	}
	c.count("handles compared with the deadlines of their leases", looked)
}

// leaseEnds are the deadlines of leases. Each is counted from when the last renewal was sent that was answered in time: an
// answer that comes after the deadline revives nothing. Nothing is known of a lease before the first renewal that was sent in
// this history: of those before it, one that was sent later may have been answered earlier.
func (c *checker) leaseEnds() map[int64]time.Duration {
	if c.ttl == 0 {
		return nil
	}
	valid := c.ttl - min(c.ttl/10, time.Second) // less the margin
	ends := map[int64]time.Duration{}
	slices.SortStableFunc(c.renewed, func(x, y *history.Event) int { return cmp.Compare(x.At, y.At) })
	for _, e := range c.renewed {
		asked, err := time.ParseDuration(e.Value)
		if err != nil {
			c.malformed(fmt.Sprintf("renewal of lease %x has the value %q, want a duration", e.Lease, e.Value))
			continue
		}
		end, known := ends[e.Lease]
		if sent := e.At - asked; known && e.At <= end || !known && sent >= c.first {
			ends[e.Lease] = max(end, sent+valid)
		}
	}
	return ends
}
