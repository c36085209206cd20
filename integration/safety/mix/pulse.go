package mix

import (
	"context"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/safety/history"
)

const (
	slowCluster = "slow cluster" // the fault in the history for a slow commit that the nemesis did not cause
	slowCommit  = 250 * time.Millisecond
	lostCommit  = time.Second // gives a commit up: one that a fault has lost must not excuse what comes after the fault
	forever     = time.Duration(math.MaxInt64)
)

// pulse makes each member commit no-ops all the time, for a plain client that no fault is aimed at. A cluster that
// commits slowly serves all clients late, whatever the library does, so the history records a slow commit as a fault.
type pulse struct {
	tape *tape
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex // guards the field below
	late []*beat    // slow commits, also those that are still under way
}

// beat is a slow commit.
type beat struct{ sent, answered time.Duration }

// startPulse starts a pulse, which must end before its round: a history has each fault from its beginning to its end.
func (r *run) startPulse(ctx context.Context) *pulse {
	ctx, stop := context.WithCancel(ctx)
	p := &pulse{tape: r.tape, stop: stop}
	for _, member := range r.members {
		p.wg.Go(func() {
			for ctx.Err() == nil {
				p.beat(ctx, member)
				sleep(ctx, slowCommit/2)
			}
		})
	}
	return p
}

func (p *pulse) end() {
	p.stop()
	p.wg.Wait()
}

func (p *pulse) beat(ctx context.Context, member *clientv3.Client) {
	const nobody = clientv3.LeaseID(1)
	ctx, cancel := context.WithTimeout(ctx, lostCommit)
	defer cancel()
	fault := history.Event{At: p.tape.Now(), Kind: history.Fault, Fault: p.tape.ID(), Name: slowCluster, Target: "cluster"}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = member.Revoke(ctx, nobody) // there is no such lease
	}()
	select {
	case <-answered:
		return
	case <-time.After(slowCommit):
	}
	p.tape.Record(fault)
	b := &beat{fault.At, forever}
	p.mu.Lock()
	p.late = append(p.late, b)
	p.mu.Unlock()
	<-answered
	fault.Kind, fault.At = history.Heal, p.tape.Now()
	p.tape.Record(fault)
	p.mu.Lock()
	defer p.mu.Unlock()
	b.answered = fault.At
}

// slow returns the number of slow commits that ended after since or go on, and the time that the longest took.
func (p *pulse) slow(since time.Duration) (n int, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.late {
		if b.answered >= since {
			n++
			longest = max(longest, min(b.answered, p.tape.Now())-b.sent)
		}
	}
	return n, longest
}
