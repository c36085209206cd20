package mix

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// Peer counts what faults of the same kinds do to the mutex of etcd's own package concurrency. The peer uses that mutex
// as its examples show, and checks Session.Done before each write. It shows that the suite finds overlaps, and is no
// violation.
type Peer struct {
	Duration       time.Duration `json:"duration"`
	Acquisitions   int           `json:"acquisitions"`
	Failed         int           `json:"failed"`   // calls of Lock
	Overlaps       int           `json:"overlaps"` // grants while Session.Done of another holder was not closed
	LongestOverlap time.Duration `json:"longestOverlap"`
	Writes         int           `json:"writes"`
	StaleWrites    int           `json:"staleWrites"` // after a write of a later holder; a resource without a fence accepts them
	StuckKeys      int           `json:"stuckKeys"`   // still in the queue a second after Lock has failed
}

// String is the peer's part of the report.
func (p *Peer) String() string {
	return fmt.Sprintf("etcd's concurrency.Mutex under faults of the same kinds, %v, nothing fenced\n", p.Duration) + table("  %-43s %8v\n", []row{
		{"acquisitions", p.Acquisitions},
		{"failed", p.Failed},
		{"two holders at a time", p.Overlaps},
		{"  the longest", p.LongestOverlap.Round(time.Millisecond)},
		{"writes", p.Writes},
		{"  after a later holder's", p.StaleWrites},
		{"keys left by failed acquisitions", p.StuckKeys},
	})
}

// peerPrefix is the prefix of the names that the peer locks.
const peerPrefix = namesPrefix + "peer/"

// harmed returns how often something happened to the peer that must not happen.
func (p *Peer) harmed() int { return p.Overlaps + p.StaleWrites + p.StuckKeys }

// peer runs the peer under faults for Options.Peer, and for up to nine times as long if the faults do no harm.
func (r *run) peer(ctx, life context.Context) (*Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, 9*r.opts.Peer)
	defer cancel()
	stage := newPeerStage(r.etcd, r.opts.TTL)
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		for sleep(ctx, r.opts.Peer); ctx.Err() == nil && stage.harmed() == 0; {
			sleep(ctx, time.Second)
		}
		cancel()
	})
	for i, c := range r.clients {
		for j := range 2 {
			rng := rand.New(rand.NewPCG(r.opts.Seed, uint64(1000+10*i+j)))
			wg.Go(func() { stage.work(ctx, c.etcd, rng) })
		}
	}
	r.nemesis.rage(ctx, &round{run: r, names: roundNames(0)}, peerClasses())
	wg.Wait()
	stage.report.Duration = time.Since(began).Round(time.Second)
	_, err := r.etcd.Delete(life, peerPrefix, clientv3.WithPrefix())
	return &stage.report, err
}

// peerClasses are the faults of the network and of messages. More of them are on at a time, since there is less time
// and no waiter has to be served. Late answers come most often: a client that counts a lease from the answer, as the
// peer does, takes it for longer than it is.
func peerClasses() []class {
	var classes []class
	for _, c := range faultClasses() {
		switch c.name {
		case "network":
			late := slices.IndexFunc(c.kinds, func(k kind) bool { return k.name == lateAnswers })
			c.kinds = append(c.kinds, slices.Repeat(c.kinds[late:late+1], len(c.kinds))...)
		case "message":
		default:
			continue
		}
		c.name, c.slots = "peer's "+c.name, 2*c.slots
		classes = append(classes, c)
	}
	return classes
}

// peerStage is the resource without a fence, and what is known of the peer's holders.
type peerStage struct {
	etcd *clientv3.Client // straight to the members
	ttl  time.Duration

	mu      sync.Mutex // guards the fields below
	report  Peer
	grants  int
	last    map[string]*peerHold // by name: the latest holder
	written map[string]int       // by name: the latest grant that has written
}

func newPeerStage(etcd *clientv3.Client, ttl time.Duration) *peerStage {
	return &peerStage{etcd: etcd, ttl: ttl, last: map[string]*peerHold{}, written: map[string]int{}}
}

// peerHold is a holder, until it releases the lock or sees that the lock is lost.
type peerHold struct {
	lost   <-chan struct{} // Session.Done
	grant  int
	over   bool
	passed time.Time // when another holder was granted the name; zero: none was
}

func (p *peerStage) harmed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.report.harmed()
}

func (h *peerHold) sawLoss() bool { return closed(h.lost) }

// work locks, writes and unlocks until ctx ends, with a new session after each failure.
func (p *peerStage) work(ctx context.Context, etcd *clientv3.Client, rng *rand.Rand) {
	for ctx.Err() == nil {
		session, err := concurrency.NewSession(etcd, concurrency.WithTTL(int(p.ttl/time.Second)), concurrency.WithContext(ctx))
		if err != nil {
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		for ctx.Err() == nil && p.turn(ctx, session, rng) {
			sleep(ctx, millis(rng, 5, 40))
		}
		_ = session.Close() // otherwise the lease expires
	}
}

// turn reports whether the session can be used again.
func (p *peerStage) turn(ctx context.Context, session *concurrency.Session, rng *rand.Rand) bool {
	name := peerPrefix + pick(rng, []string{"a", "b", "c", "d", "e"})
	m := concurrency.NewMutex(session, name)
	waiting, cancel := context.WithTimeout(ctx, 5*p.ttl)
	defer cancel()
	if err := m.Lock(waiting); err != nil {
		p.failed(ctx, session, name)
		return false
	}
	h := p.granted(session.Done(), name)
	for end := time.Now().Add(millis(rng, 100, 3000)); time.Now().Before(end) && !h.sawLoss() && ctx.Err() == nil; {
		p.write(h, name)
		sleep(ctx, millis(rng, 5, 30))
	}
	p.over(h)
	unlocking, stop := context.WithTimeout(context.WithoutCancel(ctx), p.ttl)
	defer stop()
	return m.Unlock(unlocking) == nil && !h.sawLoss()
}

func (p *peerStage) granted(lost <-chan struct{}, name string) *peerHold {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Acquisitions++
	p.grants++
	before := p.last[name]
	h := &peerHold{lost: lost, grant: p.grants}
	p.last[name] = h
	if before != nil && !before.over && !before.sawLoss() {
		p.report.Overlaps++
		before.passed = time.Now()
	}
	return h
}

// over is called when the holder stops writing, because it is done or because it has lost the lock.
func (p *peerStage) over(h *peerHold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.over = true
	if !h.passed.IsZero() {
		p.report.LongestOverlap = max(p.report.LongestOverlap, time.Since(h.passed))
	}
}

func (p *peerStage) write(h *peerHold, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Writes++
	if h.grant < p.written[name] {
		p.report.StaleWrites++
	}
	p.written[name] = max(p.written[name], h.grant)
}

// failed checks whether a failed acquisition has left its key. Such a key blocks others for as long as the session
// lives.
func (p *peerStage) failed(ctx context.Context, session *concurrency.Session, name string) {
	sleep(ctx, time.Second)
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := p.etcd.Get(asking, fmt.Sprintf("%s/%x", name, int64(session.Lease())))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Failed++
	// If the session has lost its lease, etcd deletes the key.
	if err == nil && len(resp.Kvs) > 0 && !closed(session.Done()) {
		p.report.StuckKeys++
	}
}
