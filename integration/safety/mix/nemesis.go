package mix

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

type kind struct {
	name string
	// strike begins the fault, lets it last and heals it. If the context ends, it heals the fault early. It reports
	// whether the fault has met anything.
	strike func(*strike) (hit bool)
}

// class is a group of kinds of faults; at most slots of them are on at a time.
type class struct {
	name     string
	slots    int
	share    int // the first slot's; see onClient and onHolder
	from, to int // shortest and longest pause between two faults of a slot, in ms
	kinds    []kind
}

// classes are the classes of the mix. At most two clients have a bad network at a time, so that the others make
// progress.
func classes() []class {
	return []class{
		{"network", 2, 0, 100, 600, networkFaults()},
		{"message", 2, 0, 200, 1000, messageFaults()},
		{"process", 2, 0, 300, 1500, processFaults()},
		{"cluster", 1, 0, 1000, 2500, clusterFaults()},
		{"storage", 1, 0, 500, 2500, storageFaults()},
		{"operator", 1, 0, 500, 2500, operatorFaults()},
		{"security", 1, 2, 300, 1500, securityFaults()},
		{"load", 1, 0, 1000, 4000, loadFaults()},
	}
}

func allKinds() (names []string) {
	for _, c := range classes() {
		for _, k := range c.kinds {
			names = append(names, k.name)
		}
	}
	return slices.Compact(names)
}

type nemesis struct {
	*run
	life      context.Context //nolint:containedctx // of the run, which outlives the rounds
	wg        sync.WaitGroup
	dealt     map[string]*atomic.Int64 // by class: how many faults have been dealt, over all rounds
	round     *round                   // the present one; set before the slots begin
	compacted int64                    // the last revision that was compacted; only the storage slot uses it
}

func (r *run) newNemesis(life context.Context) *nemesis {
	n := &nemesis{run: r, life: life, dealt: map[string]*atomic.Int64{}}
	for _, c := range classes() {
		n.dealt[c.name] = new(atomic.Int64)
	}
	return n
}

// deal returns the next kind of a class: each comes, in random order, before one comes again.
func (n *nemesis) deal(c class) kind {
	i, all := int(n.dealt[c.name].Add(1))-1, len(c.kinds)
	return c.kinds[rand.New(rand.NewPCG(n.opts.Seed, hash(c.name)+uint64(i/all))).Perm(all)[i%all]]
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it cannot fail
	return h.Sum64()
}

// rage injects faults until ctx ends, and returns after all of them are healed.
func (n *nemesis) rage(ctx context.Context, r *round) {
	n.round = r
	var slots sync.WaitGroup
	for _, c := range classes() {
		for i := range c.slots {
			rng := rand.New(rand.NewPCG(n.opts.Seed+uint64(r.number), hash(c.name)+uint64(i)))
			slots.Go(func() {
				for sleep(ctx, millis(rng, c.from, c.to)); ctx.Err() == nil; sleep(ctx, millis(rng, c.from, c.to)) {
					k := n.deal(c)
					s := &strike{nemesis: n, ctx: ctx, rng: rng, kind: k.name, share: c.share + i}
					s.heal(k.strike(s))
				}
			})
		}
	}
	slots.Wait()
	n.wg.Wait()
}

type strike struct {
	*nemesis
	ctx      context.Context //nolint:containedctx // of the round
	rng      *rand.Rand
	kind     string
	share    int           // its slot's
	begun    history.Event // zero: it has not begun
	revision int64         // for the heal event
}

// begin records the fault, right before it begins.
func (s *strike) begin(targets ...string) {
	s.begun = history.Event{Kind: history.Fault, Fault: s.tape.ID(), Name: s.kind, Target: strings.Join(targets, " and ")}
	s.tape.Record(s.begun)
}

// heal records that the fault is healed, and counts it.
func (s *strike) heal(hit bool) {
	if e := s.begun; e.Fault != 0 {
		e.Kind, e.Revision = history.Heal, s.revision
		s.tape.Record(e)
	}
	s.report.strike(s.kind, hit)
}

// asks makes a request to etcd and reports whether it has succeeded within 3 s.
func (s *strike) asks(call func(context.Context) error) bool { return s.bounded(s.ctx, call) == nil }

func (*strike) bounded(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return call(ctx)
}

// last waits for a random time while the fault lasts; from and to are in milliseconds.
func (s *strike) last(from, to int) { sleep(s.ctx, millis(s.rng, from, to)) }

// lastAny waits for a moment or, in two of five cases, for longer than a TTL.
func (s *strike) lastAny() {
	if s.rng.IntN(5) < 3 {
		s.last(200, 900)
		return
	}
	s.last(inTTL+500, inTTL+2000)
}

const inTTL = int(ttl / time.Millisecond) // for last

// meanwhile lets something be changed until undo has changed it back. It reports whether do has succeeded.
func (s *strike) meanwhile(do, undo func(context.Context) error, last func()) bool {
	err := s.bounded(s.life, do)
	if err == nil {
		last()
	}
	_ = insist(s.life, undo) // an error means that the run has ended
	if err != nil {
		// The request may still be on its way, in a member that is stopped, and be applied after it was undone.
		s.awaitAgreement()
		_ = insist(s.life, undo)
	}
	return err == nil
}
