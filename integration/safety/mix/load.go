package mix

import (
	"context"
	"runtime"
	"sync"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// loadFaults are too much of something.
func loadFaults() []kind {
	return []kind{{"cancel storm", storm}, {"no time to run", starve}}
}

// storm lets many wait for a hot name and gives them all up at once.
func storm(s *strike) bool {
	const many = 40
	c, name := pick(s.rng, s.clients), pick(s.rng, s.round.names.Hot)
	s.begin(c.name)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session, ttl := c.current(), s.ttl
	var wg sync.WaitGroup
	var mu sync.Mutex
	gaveUp := 0
	for range many {
		wg.Go(func() {
			w := &worker{crew: &crew{log: s.tape, ttl: ttl, draining: s.ctx.Done()}, name: c.name + "/storm", rng: nil}
			op := w.enter(name, "")
			l, err := session.Lock(ctx, name)
			if err != nil {
				w.log.Record(history.Event{Kind: history.GiveUp, Op: op, Outcome: history.Failed, Error: err.Error()})
				mu.Lock()
				defer mu.Unlock()
				gaveUp++
				return
			}
			w.storm(op, name, l) //nolint:contextcheck // who gives up waiting still lets go
		})
	}
	s.last(20, 300)
	cancel()
	wg.Wait()
	return gaveUp > 0
}

// storm holds for no time at all.
func (w *worker) storm(op int64, name string, l *lease.Lock) {
	w.log.Record(history.Event{Kind: history.Grant, Op: op, Actor: w.name, Name: name, Token: l.Token(), Key: l.Key()})
	w.release(op, l.Unlock)
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
