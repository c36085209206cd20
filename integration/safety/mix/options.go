package mix

import (
	"cmp"
	"fmt"
	"io"
	"time"
)

// Options configure [Run]. The zero value of each field stands for its default; only Dir is required.
type Options struct {
	// Seed of the random choices. The scheduler and the disk do not follow it, so a seed gives the same plan but not
	// the same history.
	Seed uint64
	// Duration of the mix; a round that has begun is finished. Default 3 minutes.
	Duration time.Duration
	// Floors keep the mix going beyond Duration, up to twice as long, while one of them is not reached: a busy machine
	// does less in the same time. Default: none.
	Floors []Floor
	// Round is how long faults go on before all of them are healed. Default 20 s.
	Round time.Duration
	// TTL of all leases; whole seconds, 2 s or more. Default 2 s.
	TTL time.Duration
	// Clients is the number of etcd clients in this process. Default 8.
	Clients int
	// Workers is the number of goroutines of each client that acquire locks. Default 6.
	Workers int
	// Holders is the number of clients that are processes of their own. Default 2.
	Holders int
	// Peer is how long etcd's own mutex runs under the same faults, after the mix. Default: it does not run.
	Peer time.Duration
	// Restore takes the cluster back to a snapshot after the mix. Default: it stays as it is.
	Restore bool
	// Dir is where the servers keep their data, on a real disk, and where histories are written. Required.
	Dir string
	// Server is the program of the members, as package slowdisk builds it. Default: this program, whose disks are never
	// slow, so that the fault "slow disk" meets nothing.
	Server string
	// First ends the run after the first round with a violation.
	First bool
	// KeepAll also keeps the histories of clean rounds.
	KeepAll bool
	// Progress gets a line after each round. Default: the lines are dropped.
	Progress io.Writer
	// Saboteur breaks something on purpose, for the suite's own tests. Default: nothing.
	Saboteur Saboteur
}

// Saboteur says what to break, so that a test can see that a run finds it.
type Saboteur struct {
	ForgetToken bool // the fenced resource does not check the token
	FalseLive   bool // workers record their handles as live after they have lost or released them
	ForgetMarks bool // the fenced resource loses its marks when the cluster is restored
	Litter      bool // a key is put into a queue and stays there
}

func (o Options) resolve() (Options, error) {
	if o.TTL != 0 && o.TTL < 2*time.Second {
		return o, fmt.Errorf("mix: Options.TTL is %v, want 2s or more: servers grant no less", o.TTL)
	}
	o.Duration, o.Round, o.TTL = cmp.Or(o.Duration, 3*time.Minute), cmp.Or(o.Round, 20*time.Second), cmp.Or(o.TTL, 2*time.Second)
	o.Clients, o.Workers, o.Holders = cmp.Or(o.Clients, 8), cmp.Or(o.Workers, 6), cmp.Or(o.Holders, 2)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o, nil
}

// served returns the time within which every waiter must be served after all faults have ended: a lease that was
// renewed just before a change of leader lives for two TTLs, and the servers have three seconds to find each other.
func served(ttl time.Duration) time.Duration { return 2*ttl + 3*time.Second }
