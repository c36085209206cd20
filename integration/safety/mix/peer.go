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

// Peer is what faults of the same kinds do to the mutex of etcd's own package concurrency, used as its examples show and
// with a look at Session.Done before each write. It shows what the suite can find, and fails nothing.
type Peer struct {
	Duration       time.Duration `json:"duration"`
	Acquisitions   int           `json:"acquisitions"`
	Failed         int           `json:"failed"`   // calls of Lock
	Overlaps       int           `json:"overlaps"` // grants while another holder had not been told that it had lost
	LongestOverlap time.Duration `json:"longestOverlap"`
	Writes         int           `json:"writes"`
	StaleWrites    int           `json:"staleWrites"` // by holders after a later holder's, taken by a resource without a fence
	StuckKeys      int           `json:"stuckKeys"`   // left in the queue by a call of Lock that failed, a second later
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

const peerPrefix = namesPrefix + "peer/"

// harmed is how often something happened to the peer that must not.
func (p *Peer) harmed() int { return p.Overlaps + p.StaleWrites + p.StuckKeys }

// peer shows the peer the faults for a while, and for up to nine times as long while they do no harm.
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

// peerClasses are the faults of what lies between a client and the cluster, and more of them at a time: there is less time,
// and nobody has to be served. Late answers come most often, since whoever counts a lease from the answer counts too long.
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

// peerStage is the names that the peer locks, and the resource without a fence.
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

// peerHold is a holder, until it lets go or is told that it has lost.
type peerHold struct {
	lost   <-chan struct{} // closed when it is told
	grant  int
	over   bool
	passed time.Time // when another was granted the name, if one was
}

func (p *peerStage) harmed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.report.harmed()
}

func (h *peerHold) told() bool { return closed(h.lost) }

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
		_ = session.Close() // what it could not revoke expires
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
	for end := time.Now().Add(millis(rng, 100, 3000)); time.Now().Before(end) && !h.told() && ctx.Err() == nil; {
		p.write(h, name)
		sleep(ctx, millis(rng, 5, 30))
	}
	p.over(h)
	letGo, stop := context.WithTimeout(context.WithoutCancel(ctx), p.ttl)
	defer stop()
	return m.Unlock(letGo) == nil && !h.told()
}

func (p *peerStage) granted(lost <-chan struct{}, name string) *peerHold {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Acquisitions++
	p.grants++
	before := p.last[name]
	h := &peerHold{lost: lost, grant: p.grants}
	p.last[name] = h
	if before != nil && !before.over && !before.told() {
		p.report.Overlaps++
		before.passed = time.Now()
	}
	return h
}

// over is called when the holder stops to work: it lets go, or has been told.
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

// failed looks whether a failed acquisition has left its key, which is in the way of others as long as the session lives.
func (p *peerStage) failed(ctx context.Context, session *concurrency.Session, name string) {
	sleep(ctx, time.Second)
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := p.etcd.Get(asking, fmt.Sprintf("%s/%x", name, int64(session.Lease())))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Failed++
	// Where it has lost its lease, the key is gone or goes.
	if err == nil && len(resp.Kvs) > 0 && !closed(session.Done()) {
		p.report.StuckKeys++
	}
}
