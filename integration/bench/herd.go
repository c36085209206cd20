package main

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// pollEvery is how often is looked what the servers do, where there is no event for it.
const pollEvery = 50 * time.Millisecond

// herd measures what a hand-over costs the servers with few and with many waiting clients. The cost of n waiters is that
// of a drain of n less that of a drain of one, for n - 1 hand-overs: what happens once in each drain, at the first release
// and after the last grant, cancels out.
func herd(ctx context.Context, t *trial) ([]sample, error) {
	const few = 2
	many := t.scale.herd
	sessions, err := t.processes(ctx, many+1)
	if err != nil {
		return nil, err
	}
	var samples []sample
	for _, n := range []int{few, many} {
		repeats := 1
		if n == few {
			repeats = t.scale.herdRepeats
		}
		for i := range repeats {
			alone, err := t.drain(ctx, sessions[:2], t.name("alone", n, i))
			if err != nil {
				return nil, err
			}
			all, err := t.drain(ctx, sessions[:n+1], t.name("queue", n, i))
			if err != nil {
				return nil, err
			}
			all.cost = all.cost.minus(alone.cost)
			all.line = "many waiting"
			if n == few {
				all.line = "2 waiting"
			}
			samples = append(samples, all)
		}
	}
	least := summarize(samples[:len(samples)-1]).Requests
	last := samples[len(samples)-1]
	last.extra["requests/hand-over, against 2 waiting"] = ratio(summarize([]sample{last}).Requests, least)
	return samples, nil
}

// drain has all sessions but the first wait for a lock that the first one holds. When all wait and nothing moves any more,
// the first one lets go, and each has one turn and leaves. The last one keeps the lock until all is counted.
func (t *trial) drain(ctx context.Context, sessions []session, name string) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	holder, waiters := sessions[0].locker(name), make([]locker, len(sessions)-1)
	for i := range waiters {
		waiters[i] = sessions[i+1].locker(name)
	}
	if err := holder.Lock(ctx); err != nil {
		return sample{}, err
	}
	idle, err := t.quiet(ctx)
	if err != nil {
		return sample{}, err
	}

	var turns []stay
	drained := make(chan error, 1)
	go func() {
		var err error
		if turns, err = onceEach(ctx, waiters); err != nil {
			cancel() // nobody need wait for them
		}
		drained <- err
	}()
	before, err := t.queued(ctx, name, len(sessions))
	if err == nil {
		err = holder.Unlock(ctx)
	}
	if err != nil {
		cancel()
	}
	if turnsErr := <-drained; turnsErr != nil {
		return sample{}, turnsErr
	}
	if err != nil {
		return sample{}, err
	}
	after, err := t.quiet(ctx)
	if err != nil {
		return sample{}, err
	}
	last := turns[len(turns)-1]
	s := sample{
		ops: len(turns) - 1, elapsed: last.granted.Sub(turns[0].granted), cost: after.minus(before),
		extra: map[string]float64{"watches of a waiting client": (before.watchers - idle.watchers) / float64(len(waiters))},
	}
	for i := 1; i < len(turns); i++ {
		s.latencies = append(s.latencies, turns[i].granted.Sub(turns[i-1].releasing))
	}
	return s, waiters[last.who].Unlock(ctx)
}

// onceEach has each locker take the lock once and release it, the last one excepted. Stays are in order.
func onceEach(ctx context.Context, lockers []locker) ([]stay, error) {
	var (
		mu    sync.Mutex
		stays = make([]stay, 0, len(lockers)) // never grows, so elements stay where they are
	)
	err := each(ctx, len(lockers), func(ctx context.Context, i int) error {
		if err := lockers[i].Lock(ctx); err != nil {
			return err
		}
		mu.Lock()
		now := time.Now()
		stays = append(stays, stay{who: i, granted: now, releasing: now})
		last := len(stays) == len(lockers)
		mu.Unlock()
		if last {
			return nil
		}
		return lockers[i].Unlock(ctx)
	})
	return stays, err
}

// queued waits until n keys stand in the queue of a name, which is the same place for both implementations, and then for
// quiet.
func (t *trial) queued(ctx context.Context, name string, n int) (counters, error) {
	if err := t.standing(ctx, name, n); err != nil {
		return counters{}, err
	}
	return t.quiet(ctx)
}

// standing waits until n keys stand in the queue of a name.
func (t *trial) standing(ctx context.Context, name string, n int) error {
	for {
		resp, err := t.clients[0].Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count == int64(n) {
			return err
		}
		if err := sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// quiet waits until no requests have come for a while.
func (t *trial) quiet(ctx context.Context) (counters, error) {
	last, err := t.counters(ctx)
	since := time.Now()
	for err == nil && time.Since(since) < t.scale.quiet {
		if err = sleep(ctx, pollEvery); err != nil {
			break
		}
		var now counters
		if now, err = t.counters(ctx); now.requests() != last.requests() {
			last, since = now, time.Now()
		}
	}
	return last, err
}
