package mix

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

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
	// Unfenced makes a resource of the first round accept all tokens, so that a test can see that a run finds this and
	// nothing else.
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

// adopter is the number of the client whose sessions adopt leases that the client has granted itself.
const adopter = 1

type run struct {
	opts     Options
	tb       testing.TB
	report   *Report
	tape     *tape
	secured  *secured
	cluster  *etcdtest.Cluster
	etcd     *clientv3.Client   // straight to the members
	members  []*clientv3.Client // straight to one each
	watch    *keyWatch
	endWatch context.CancelFunc
	monitor  *monitor
	database *database
	clients  []*client
	links    []*link // of the clients that are processes of their own
	nemesis  *nemesis
	rounds   int    // that were run
	heap     uint64 // after the third round
	routines int    // after the third round
}

// Run runs the mix and reports what it has found, and prints a line after each round. When ctx ends, the present round is
// cut short and checked as usual. The test fails only if the run itself could not be carried out.
func Run(ctx context.Context, t *testing.T, opts Options) *Report {
	t.Helper()
	r := &run{opts: opts, report: newReport(opts.Seed), tape: newTape(opts.Dir), tb: t}
	r.mix(ctx)
	if left := leftGoroutines(context.WithoutCancel(ctx)); len(left) > 0 {
		r.report.violate(0, "end", "%d goroutines are left after Close: %s", len(left), left[0])
	}
	return r.report
}

// ofLibrary matches the stack of a goroutine that runs code of the library, or that this code has started.
var ofLibrary = regexp.MustCompile(`(?m)^(created by )?github\.com/leasefence/leasefence/(lease|election|fence|internal/(candidacy|clock|etcd|logqueue|queue))[./]`)

// leftGoroutines waits until no goroutine is the library's, and returns the stacks of those that are left.
func leftGoroutines(ctx context.Context) (left []string) {
	text := make([]byte, 16<<20)
	await(ctx, patience, func(context.Context) (bool, error) {
		left = nil
		for stack := range strings.SplitSeq(string(text[:runtime.Stack(text, true)]), "\n\n") {
			if ofLibrary.MatchString(stack) {
				left = append(left, stack)
			}
		}
		return len(left) == 0, nil
	})
	return left
}

// connect returns a client of etcd. Its Close at the end of the test may hang: if a watch was refused while its stream
// ended, a stream of etcd's client 3.7.3 waits for a goroutine that waits for the stream. So nobody waits for it.
func (r *run) connect(endpoints []string, opts ...etcdtest.ClientOption) *clientv3.Client {
	return etcdtest.NewClient(unawaited{r.tb}, endpoints, opts...)
}

// unawaited is a test that does not wait for its cleanups.
type unawaited struct{ testing.TB }

func (u unawaited) Cleanup(f func()) { u.TB.Cleanup(func() { go f() }) }

func (r *run) mix(ctx context.Context) {
	// When ctx ends, the present round is still finished: its requests use life.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	r.secured = newSecured(r.tb)
	r.cluster = etcdtest.StartCluster(r.tb, 3, r.secured.settings())
	endpoints := r.cluster.Endpoints()
	r.secured.enable(ctx, r.tb, endpoints, r.users())
	r.etcd = r.connect(endpoints, r.secured.root.option())
	for _, e := range endpoints {
		r.members = append(r.members, r.connect([]string{e}, r.secured.root.option()))
	}
	r.watch = &keyWatch{etcd: r.etcd, tape: r.tape, seen: 1, keys: map[string]history.Event{}} // an empty store is at revision 1
	r.monitor = &monitor{
		etcd: r.etcd, report: r.report, counts: map[string]int{},
		http: http.Client{Timeout: time.Second, Transport: &http.Transport{TLSClientConfig: r.secured.root.tls()}},
	}
	watching, endWatch := context.WithCancel(life)
	r.endWatch = endWatch
	wg.Go(func() { r.watch.run(watching) })
	wg.Go(func() { r.monitor.run(life, endpoints) })
	wg.Go(func() { r.heartbeat(life) })
	r.database = openDatabase(ctx, r.tb)
	for i := range r.opts.clients() {
		c := r.newClient(userOf(ofClient, i))
		c.adopts = i == adopter
		require.NoError(r.tb, insist(ctx, c.open))
		r.clients = append(r.clients, c)
	}
	for range holders {
		r.links = append(r.links, r.newLink())
	}
	r.nemesis = r.newNemesis(life)
	for number := 1; ctx.Err() == nil && r.goesOn(number); number++ {
		r.round(ctx, life, number)
	}
	r.closeSessions(life)
	if ctx.Err() == nil && (!r.opts.First || r.report.violations() == 0) {
		r.restore(life)
	}
}

func (r *run) users() (users []string) {
	for kind, all := range map[string]int{ofClient: r.opts.clients(), ofHolder: holders, ofNewcomer: newcomers} {
		for n := range all {
			users = append(users, userOf(kind, n))
		}
	}
	return users
}

func (r *run) goesOn(number int) bool {
	now := r.tape.Now()
	switch {
	case r.opts.First && r.report.violations() > 0:
		return false
	case number == 1 || now < r.opts.Duration:
		return true
	case now > 2*r.opts.Duration || r.report.violations() > 0:
		return false
	}
	// The restore comes after the rounds.
	return slices.ContainsFunc(r.report.Missed(), func(m string) bool { return !strings.HasPrefix(m, check.OfRestore) })
}

func (r *run) round(ctx, life context.Context, number int) {
	round := r.newRound(life, number)
	raging, cancel := context.WithTimeout(ctx, min(rage, r.opts.Duration))
	r.nemesis.rage(raging, round)
	cancel()
	round.settle(life)
	r.tape.Record(history.Event{Kind: history.Note, Name: history.NoteEnd})
	if round.end().Counts[check.Excused] == 0 {
		r.report.count(calmRounds, 1)
	}
	r.checkMemory(round)
	r.rounds = number
	r.report.count(rounds, 1)
	expired := 0
	for _, c := range r.clients {
		expired += c.in.Failed(rpctypes.ErrInvalidAuthToken)
	}
	r.report.most(staleAuth, expired)
	r.tb.Logf("%8s  %s", r.tape.Now().Round(time.Second), r.report.line())
}

// checkMemory compares heap and goroutines after a round, when no worker holds or waits, with those after the third
// round.
func (r *run) checkMemory(round *round) {
	const first, room, most = 3, 64 << 20, 300
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	routines := runtime.NumGoroutine()
	r.report.most(heap, int(min(m.HeapAlloc, math.MaxInt)>>20))
	if round.number == first {
		r.heap, r.routines = m.HeapAlloc, routines
	}
	if round.number > first && routines > 2*r.routines+most {
		round.complain("memory", "%d goroutines, after %d in round %d", routines, r.routines, first)
	}
	if round.number > first && m.HeapAlloc > 2*r.heap+room {
		round.complain("memory", "%d MiB on the heap, after %d in round %d", m.HeapAlloc>>20, r.heap>>20, first)
	}
}

// closeSessions closes all sessions and then looks for keys and leases that are left on the servers.
func (r *run) closeSessions(ctx context.Context) {
	for _, c := range r.clients {
		// An adopting session reports keys that may still arrive; they go with the lease.
		if err := closeSession(ctx, c.current()); err != nil && !c.adopts {
			r.report.violate(0, "end", "close the session of %s: %v", c.name, err)
		}
	}
	var left []string
	await(ctx, patience, func(ctx context.Context) (_ bool, err error) {
		left, err = r.leftKeys(ctx, "")
		if err != nil {
			return false, err
		}
		resp, err := r.etcd.Leases(ctx)
		if err != nil {
			return false, err
		}
		for _, l := range resp.Leases {
			left = append(left, fmt.Sprintf("lease %x", l.ID))
		}
		return len(left) == 0, nil
	})
	if len(left) > 0 {
		r.report.violate(0, "I7", "%v after Close there are left: %q", patience, left)
	}
}

// leftKeys returns the keys with the prefix, or the error instead.
func (r *run) leftKeys(ctx context.Context, prefix string) (left []string, err error) {
	resp, err := r.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return []string{err.Error()}, err
	}
	for _, kv := range resp.Kvs {
		left = append(left, string(kv.Key))
	}
	return left, nil
}
