package mix

import "time"

// Options configure [Run].
type Options struct {
	// Seed of the random choices. The scheduler and the disk do not follow it, so a seed gives the same plan but not
	// the same history.
	Seed uint64
	// Duration of the mix. A round that has begun is finished, and up to as much time again is added while a floor is
	// not reached: a busy machine does less in the same time.
	Duration time.Duration
	// Dir is where histories are written.
	Dir string
	// First ends the run after the first round with a violation.
	First bool
	// KeepAll also keeps the histories of clean rounds.
	KeepAll bool
	// Small runs half as many clients and workers, for the suite's own tests.
	Small bool
	// Unfenced makes the fenced resources accept all tokens, so that a test can see that a run finds it.
	Unfenced bool
}

const (
	ttl       = 2 * time.Second  // of all leases but those that a restore must not end: the least that servers grant
	rage      = 20 * time.Second // how long faults go on before all of them are healed
	holders   = 2                // clients that are processes of their own
	newcomers = 2                // clients that come after the restore
)

// patience bounds the waits for what must come at some time, however slow the machine is. Only a run that fails reaches it.
const patience = time.Minute

// served is the time within which every waiter must be served after all faults have ended: a lease that was renewed
// just before a change of leader lives for two TTLs, and the servers have three seconds to find each other.
const served = 2*ttl + 3*time.Second

// clients returns the number of etcd clients in this process, workers the number of goroutines of each that acquire
// locks.
func (o Options) clients() int { return o.half(8) }
func (o Options) workers() int { return o.half(6) }

func (o Options) half(n int) int {
	if o.Small {
		return n / 2
	}
	return n
}
