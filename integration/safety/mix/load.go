package mix

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// loadFaults overload this process or the cluster.
func loadFaults() []kind {
	return []kind{{"no time to run", starve}, {"burst", burst}}
}

// worker returns a worker of a client that is in no crew, for a fault or for the peace.
func (s *strike) worker(c *client, what string) *worker {
	return &worker{
		crew: &crew{log: s.tape.Recorder, draining: s.ctx.Done()}, name: c.name + "/" + what,
		rng: rand.New(rand.NewPCG(s.rng.Uint64(), 0)),
	}
}

// idle is the work of a holder that only wants the lock.
func idle(int64, *held) {}

func burst(s *strike) bool {
	two := slices.Clone(s.clients)
	s.rng.Shuffle(len(two), func(i, j int) { two[i], two[j] = two[j], two[i] })
	two = two[:min(2, len(two))]
	s.begin(two[0].name)
	return s.takeTogether(25, two...)
}

// takeTogether has many workers of each session take and release locks at the same time, again and again, so that their
// transactions share commits. All sessions want every other lock, so that in one commit some transactions are first in
// their queues and some are not. Each turn has new names: if a queue was recently not empty, a session enters it with a
// transaction that does not depend on an empty queue.
func (s *strike) takeTogether(turns int, clients ...*client) bool {
	const many = 32
	var held atomic.Int64
	id, began := s.tape.ID(), time.Now()
	for turn := 0; turn < turns && time.Since(began) < 2*ttl && s.ctx.Err() == nil; turn++ {
		var wg sync.WaitGroup
		for _, c := range clients {
			session := c.current()
			for i := range many {
				w, name := s.worker(c, "burst "+strconv.Itoa(i)), s.round.names.own(fmt.Sprintf("%d.%d.%d", id, turn, i))
				if i%2 == 0 {
					name += "." + c.id.user
				}
				wg.Go(func() {
					if w.under(s.ctx, exclusive(session, name), idle) == nil {
						held.Add(1)
					}
				})
			}
		}
		wg.Wait()
	}
	return held.Load() > many
}

// starve keeps the processors busy with work and with garbage.
func starve(s *strike) bool {
	s.begin("all clients")
	ctx, cancel := context.WithTimeout(s.ctx, millis(s.rng, 300, 1500))
	defer cancel()
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var garbage [][]byte
			for ctx.Err() == nil {
				garbage = append(garbage, make([]byte, 64<<10))
				if len(garbage) > 100 {
					garbage = nil
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
	return true
}
