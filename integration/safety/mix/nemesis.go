package mix

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// kind is a kind of fault.
type kind struct {
	name string
	// strike begins the fault, lets it last and heals it. If the context ends, it heals the fault early. It reports
	// whether the fault has met anything.
	strike func(*strike) (hit bool)
}

// class is a group of kinds of faults; at most slots of them are on at a time.
type class struct {
	name  string
	slots int
	rest  [2]int // shortest and longest pause between two faults of a slot, in ms
	kinds []kind
}

// nemesis injects the faults of a run.
type nemesis struct {
	seed      uint64
	ttl       time.Duration
	tape      *tape
	cluster   *etcdproc.Cluster
	etcd      *clientv3.Client // straight to the members
	watch     *keyWatch
	monitor   *monitor
	clients   []*client
	secured   *secured
	slowDisks bool            // whether the members' disks can be made slow
	life      context.Context //nolint:containedctx // of the run, which outlives the rounds
	wg        sync.WaitGroup

	round     *round // the present one; set before the slots begin
	compacted int64  // the last revision that was compacted; only the storage slot uses it
	decks     map[string]*deck

	mu     sync.Mutex   // guards the fields below
	busy   map[any]bool // clients and berths that a fault has reserved
	struck map[string]*Struck
	early  int // leases that woken members revoked which no longer led
}

// Struck counts the faults of one kind that were injected.
type Struck struct {
	Fired  int `json:"fired"`  // met something
	Missed int `json:"missed"` // met nothing; Counts.Faults is without them
}

// deck deals kinds in random order, each kind once before any comes again. It is kept from round to round.
type deck struct {
	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	kinds []kind
	left  []kind
}

func (d *deck) deal() kind {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.left) == 0 {
		d.left = append(d.left, d.kinds...)
		d.rng.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	k := d.left[0]
	d.left = d.left[1:]
	return k
}

// strike is one fault.
type strike struct {
	*nemesis
	ctx      context.Context //nolint:containedctx // of the round
	rng      *rand.Rand
	kind     string
	id       int64 // of the fault; 0: it has not begun
	target   string
	revision int64 // for the heal event
}

// faultClasses are the classes of the mix. At most two clients have a bad network at a time, so that the others make
// progress.
func faultClasses() []class {
	return []class{
		{name: "network", slots: 2, rest: [2]int{100, 600}, kinds: networkFaults()},
		{name: "message", slots: 2, rest: [2]int{200, 1000}, kinds: messageFaults()},
		{name: "process", slots: 2, rest: [2]int{300, 1500}, kinds: processFaults()},
		{name: "cluster", slots: 1, rest: [2]int{1000, 2500}, kinds: clusterFaults()},
		{name: "storage", slots: 1, rest: [2]int{500, 2500}, kinds: storageFaults()},
		{name: "operator", slots: 1, rest: [2]int{500, 2500}, kinds: operatorFaults()},
		{name: "security", slots: 1, rest: [2]int{300, 1500}, kinds: securityFaults()},
		{name: "load", slots: 1, rest: [2]int{1000, 4000}, kinds: loadFaults()},
	}
}

// AllKinds are the names of all kinds of faults.
func AllKinds() []string {
	var names []string
	for _, c := range faultClasses() {
		for _, k := range c.kinds {
			names = append(names, k.name)
		}
	}
	return names
}

func (n *nemesis) prepare() {
	n.busy, n.struck, n.decks = map[any]bool{}, map[string]*Struck{}, map[string]*deck{}
	for _, c := range append(faultClasses(), peerClasses()...) {
		n.decks[c.name] = &deck{rng: rand.New(rand.NewPCG(n.seed, hash(c.name))), kinds: c.kinds}
		for _, k := range c.kinds {
			n.struck[k.name] = &Struck{}
		}
	}
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it cannot fail
	return h.Sum64()
}

// rage injects faults until ctx ends, and returns after all of them are healed.
func (n *nemesis) rage(ctx context.Context, r *round, classes []class) {
	n.round = r
	var slots sync.WaitGroup
	for _, c := range classes {
		for i := range c.slots {
			rng := rand.New(rand.NewPCG(n.seed+uint64(r.number), hash(c.name)+uint64(i)))
			slots.Go(func() { n.slot(ctx, c, rng) })
		}
	}
	slots.Wait()
	n.wg.Wait()
}

// slot injects faults of a class, one at a time, until ctx ends.
func (n *nemesis) slot(ctx context.Context, c class, rng *rand.Rand) {
	for {
		sleep(ctx, millis(rng, c.rest[0], c.rest[1]))
		if ctx.Err() != nil {
			return
		}
		k := n.decks[c.name].deal()
		s := &strike{nemesis: n, ctx: ctx, rng: rng, kind: k.name}
		s.heal(k.strike(s))
	}
}

// begin records the fault, right before it begins.
func (s *strike) begin(target string) {
	s.id, s.target = s.tape.ID(), target
	s.tape.Record(history.Event{Kind: history.Fault, Fault: s.id, Name: s.kind, Target: target})
}

// heal records that the fault is healed, and counts it.
func (s *strike) heal(hit bool) {
	if s.id != 0 {
		s.tape.Record(history.Event{
			Kind: history.Heal, Fault: s.id, Name: s.kind, Target: s.target, Revision: s.revision,
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if hit {
		s.struck[s.kind].Fired++
	} else {
		s.struck[s.kind].Missed++
	}
}

// strikes returns a copy of the counts, and how many faults fired in all.
func (n *nemesis) strikes() (byKind map[string]Struck, fired int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	byKind = map[string]Struck{}
	for name, s := range n.struck {
		byKind[name] = *s
		fired += s.Fired
	}
	return byKind, fired
}

// take reserves a random element of all that no other fault has reserved. If there is none, giveBack is nil.
func take[T comparable](s *strike, all []T) (one T, giveBack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(all), func(x T) bool { return s.busy[x] })
	if len(free) == 0 {
		return one, nil
	}
	one = pick(s.rng, free)
	s.busy[one] = true
	return one, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, one)
	}
}

// asks makes a request to etcd and reports whether it has succeeded within 3 s.
func (s *strike) asks(call func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	return call(ctx) == nil
}

// last waits for a random time while the fault lasts; from and to are in milliseconds.
func (s *strike) last(from, to int) { sleep(s.ctx, millis(s.rng, from, to)) }

// lastAny waits for a moment or, in two of five cases, for longer than a TTL.
func (s *strike) lastAny() {
	if s.rng.IntN(5) < 3 {
		s.last(200, 900)
		return
	}
	ttl := int(s.ttl.Milliseconds())
	s.last(ttl+500, ttl+2000)
}

func millis(rng *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+rng.IntN(to-from)) * time.Millisecond
}

// sleep returns early if ctx ends.
func sleep(ctx context.Context, d time.Duration) { pause(ctx.Done(), d) }

// pause returns early if the channel is closed.
func pause(end <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-end:
	}
}

// closed reports whether a channel is closed to which nothing is ever sent.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
