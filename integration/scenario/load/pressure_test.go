package load_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// rush is a name that changes hands all the time, between sessions each of which is cut off now and then while it holds it.
type rush struct {
	way      rig.Way
	name     string
	sessions []*lease.Session
	witness  rig.Witness
	ledger   ledger

	turns  []*atomic.Int64 // of each who takes them
	losses atomic.Int64
	calm   atomic.Bool // nobody is cut off any more
	wg     sync.WaitGroup
}

func newRush(t *testing.T, endpoints []string, way rig.Way) *rush {
	t.Helper()
	const sessions, each = 4, 2
	r := &rush{way: way, name: way.Name}
	t.Cleanup(r.wg.Wait) // after their contexts have ended
	for range sessions {
		line := rig.NewLine(t, endpoints)
		s := rig.NewSession(t, line.Client, lease.Options{TTL: rig.MinTTL})
		r.sessions = append(r.sessions, s)
		for range each {
			ctx, turns := rig.Bounded(t), new(atomic.Int64)
			r.turns = append(r.turns, turns)
			r.wg.Go(func() { r.takeTurns(ctx, t, s, line, turns) })
		}
	}
	return r
}

// takeTurns takes the name again and again, until the session is closed.
func (r *rush) takeTurns(ctx context.Context, t *testing.T, s *lease.Session, line *rig.Line, turns *atomic.Int64) {
	t.Helper()
	for {
		h, err := r.way.Take(ctx, s, r.name)
		switch {
		case errors.Is(err, lease.ErrClosed):
			return
		case errors.Is(err, lease.ErrLost): // a process that has no time loses leases
			continue
		case ctx.Err() != nil:
			return
		case err != nil:
			t.Errorf("not granted: %v", err)
			return
		}
		r.witness.Follow(h)
		err = r.ledger.write(h.Token())
		assert.False(t, err != nil && h.Err() == nil, "the holder is fenced: %v", err)
		if turns.Load()%4 == 1 && !r.calm.Load() {
			line.Each((*faults.Proxy).BlackHole)
			<-h.Context().Done()
			line.Heal()
		}
		err = h.Free(ctx)
		switch {
		case errors.Is(err, lease.ErrClosed):
		case errors.Is(err, lease.ErrLost):
			r.losses.Add(1)
		case err != nil && ctx.Err() == nil:
			t.Errorf("not freed: %v", err)
		}
		turns.Add(1)
	}
}

// rushUnder has a name change hands while the process has other things to do.
func rushUnder(t *testing.T, pressure func(*testing.T) (relieve func())) {
	t.Helper()
	rig.Label(t)
	endpoints := startProcesses(t)
	direct := etcdtest.NewClient(t, endpoints[:1])
	relieve := sync.OnceFunc(pressure(t))
	defer relieve()
	var all []*rush
	for _, way := range rig.Ways {
		all = append(all, newRush(t, endpoints, way))
	}
	const losses = 3
	for _, r := range all {
		rig.Eventually(t, func() bool { return r.losses.Load() >= losses },
			func() string { return fmt.Sprintf("%d of %d losses of %s", r.losses.Load(), losses, r.name) })
	}
	for _, r := range all {
		r.calm.Store(true)
	}
	relieve()
	relieved := time.Now()
	for _, r := range all {
		r.everybody(t)
		// The last to be cut off was so at that moment, and learns of it within a TTL.
		require.WithinRange(t, time.Now(), relieved, relieved.Add(rig.MinTTL+rig.ServedWithin(rig.MinTTL)))
	}
	closeAll(t, direct, all)
	for _, r := range all {
		r.wg.Wait()
		r.witness.Check(t, len(r.sessions))
		r.ledger.check(t)
		t.Logf("%s: %d writes, %d holds lost", r.name, len(r.ledger.accepted), r.losses.Load())
	}
}

// everybody waits until everybody has had another turn.
func (r *rush) everybody(t *testing.T) {
	t.Helper()
	for i, turns := range r.turns {
		from := turns.Load()
		rig.Eventually(t, func() bool { return turns.Load() > from },
			func() string { return fmt.Sprintf("waiter %d of %s is not served", i, r.name) })
	}
}

func closeAll(t *testing.T, direct *clientv3.Client, all []*rush) {
	t.Helper()
	var sessions []*lease.Session
	var names []string
	for _, r := range all {
		sessions = append(sessions, r.sessions...)
		names = append(names, r.name)
	}
	rig.CloseAll(t, direct, sessions, names...)
}

// sink keeps what allocate makes from being optimised away.
var sink atomic.Pointer[[]byte]

// spin keeps goroutines busy until stop is closed.
func spin(goroutines int, stop <-chan struct{}, work func()) *sync.WaitGroup {
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					work()
				}
			}
		})
	}
	return &wg
}

func allocate() {
	b := make([]byte, 64<<10)
	sink.Store(&b)
}

func burn() {
	for n := range 1 << 16 {
		runtime.KeepAlive(n)
	}
}

// The garbage collector runs all the time. It is not parallel, since that holds for the process.
func TestLoad_gcPressure(t *testing.T) {
	rushUnder(t, func(*testing.T) func() {
		percent := debug.SetGCPercent(1)
		stop := make(chan struct{})
		busy := spin(2, stop, allocate)
		return func() {
			close(stop)
			busy.Wait()
			debug.SetGCPercent(percent)
		}
	})
}

// The process has one processor, which has other things to do. It is not parallel, since that holds for the process.
func TestLoad_cpuStarvation(t *testing.T) {
	rushUnder(t, func(*testing.T) func() {
		procs := runtime.GOMAXPROCS(1)
		stop := make(chan struct{})
		busy := spin(3, stop, burn)
		return func() {
			close(stop)
			busy.Wait()
			runtime.GOMAXPROCS(procs)
		}
	})
}
