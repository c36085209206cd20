package load_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/child"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// starvedEnv is set for a process that is to starve, and holds its part.
const starvedEnv = "LOAD_STARVED"

// part is what such a process is told. It holds a name, and each line on its standard input has it go on: it starves until
// its handle ends, and then writes to the resource. After each step it answers with a line.
type part struct {
	Endpoints []string
	Way       int
	Name      string
}

func (p part) resource() rig.Resource { return rig.Resource{Key: "fenced " + p.Name, Fenced: true} }

func (p part) play() error {
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: p.Endpoints, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	s, err := lease.NewSession(ctx, client, lease.Options{TTL: rig.MinTTL})
	if err != nil {
		return err
	}
	h, err := rig.Ways[p.Way].Take(ctx, s, p.Name)
	if err != nil {
		return err
	}
	if err := p.resource().Work(ctx, client, h.Token()); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("held %d\n", h.Token())
	in.Scan()
	fmt.Printf("over %d\n", starve(h))
	in.Scan()
	fmt.Printf("stale %t\n", errors.Is(p.resource().Write(ctx, client, h.Token()), fence.ErrStale))
	in.Scan()
	return nil
}

// starve has the process do anything but look after its lease, until the handle has ended, and returns the last instant
// at which that was live for certain. Half of what keeps it busy asks the handle all the time.
func starve(h *rig.Hold) (last int64) {
	const goroutines = 32
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19) // it starves without that too
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(1)
	stop := make(chan struct{})
	var latest atomic.Int64
	waste := spin(goroutines, stop, func() {
		allocate()
		burn()
	})
	ask := spin(goroutines, stop, func() {
		at := monotonic()
		if h.Err() != nil {
			return
		}
		for {
			before := latest.Load()
			if at <= before || latest.CompareAndSwap(before, at) {
				return
			}
		}
	})
	<-h.Context().Done()
	for h.Err() == nil {
		continue // it ends before its context does, or with it
	}
	close(stop)
	waste.Wait()
	ask.Wait()
	return latest.Load()
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

// monotonic is the time on a clock that all processes of the machine share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // there always is one
	return ts.Nano()
}

// starved is a process that plays a part.
type starved struct {
	part part
	line *rig.Line

	stdin  io.WriteCloser
	stdout *bufio.Scanner
	token  fence.Token
}

// answer waits for the process's answer to the step before.
func (s *starved) answer(t *testing.T, format string, to any) {
	t.Helper()
	require.True(t, s.stdout.Scan(), "the process has ended")
	_, err := fmt.Sscanf(s.stdout.Text(), format, to)
	require.NoError(t, err, s.stdout.Text())
}

// goOn has the process go on with the next step.
func (s *starved) goOn(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(s.stdin)
	require.NoError(t, err)
}

func newStarved(t *testing.T, endpoints []string, way int, name string) *starved {
	t.Helper()
	s := &starved{line: rig.NewLine(t, endpoints)}
	s.part = part{s.line.Client.Endpoints(), way, name}
	run, err := child.Start("", starvedEnv, s.part)
	require.NoError(t, err)
	s.stdin, s.stdout = run.Stdin, bufio.NewScanner(run.Stdout)
	t.Cleanup(func() {
		assert.NoError(t, run.Kill())
		for s.stdout.Scan() {
			continue // until its end
		}
		_ = run.Wait() // it may have been killed
	})
	s.answer(t, "held %d", &s.token)
	return s
}

// A holder whose process gets hardly any time to run is cut off. By its own clock its handle ends before the next one is
// granted the name, however late its timers and its goroutines are; and what it writes after that is refused.
func TestLoad_starvedHolderIsCutOff(t *testing.T) {
	rig.Label(t)
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Members[0].Client(t)
	waiting := rig.NewSession(t, direct, lease.Options{})
	for i, way := range rig.Ways {
		name := way.Name
		s := newStarved(t, cluster.Endpoints(), i, name)
		var witness rig.Witness
		next := make(chan *rig.Hold, 1)
		ctx := rig.Bounded(t)
		go func() {
			defer close(next)
			h, err := way.Take(ctx, waiting, name)
			if err != nil {
				t.Errorf("not granted: %v", err)
				return
			}
			witness.Follow(h)
			next <- h
		}()
		rig.AwaitQueue(t, direct, name, 2)

		for _, p := range s.line.Proxies {
			p.BlackHole()
		}
		s.goOn(t)
		var last int64
		h := rig.Await(t, next, "the waiter is not served")
		require.NotNil(t, h)
		s.answer(t, "over %d", &last)
		// In this order, so that the instant is not taken for later than it was.
		now := time.Now()
		ended := make(chan struct{})
		close(ended)
		witness.Add(&rig.Span{Token: s.token, Last: now.Add(time.Duration(last - monotonic())), Over: ended})

		require.NoError(t, s.part.resource().Work(rig.Bounded(t), direct, h.Token()))
		s.line.Heal()
		s.goOn(t)
		var stale bool
		s.answer(t, "stale %t", &stale)
		require.True(t, stale, "a lower token was accepted after a higher one")
		require.NoError(t, h.Free(rig.Bounded(t)))
		require.Positive(t, last, "the holder was not seen alive while it starved")
		witness.Check(t, 2)
		require.Zero(t, s.part.resource().Regressions(t, direct))
		s.goOn(t)
	}
}
