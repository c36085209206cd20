package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// trial is one round of one contender. Its clients and sessions are new, and no other trial has used its names, so that
// the keys of one trial in the server's index do not slow the next.
type trial struct {
	endpoint string
	impl     implementation
	prefix   string
	scale    scale
	ttl      time.Duration

	clients  []*clientv3.Client
	sessions []session
}

// lock is the name of the lock that lockers contend for.
func (t *trial) lock() string { return t.prefix + "lock" }

// session opens a session of the implementation, which is closed with the trial.
func (t *trial) session(ctx context.Context, client *clientv3.Client) (session, error) {
	s, err := t.impl.open(ctx, client, t.ttl)
	if err != nil {
		return session{}, fmt.Errorf("session: %w", err)
	}
	t.sessions = append(t.sessions, s)
	return s, nil
}

// process opens a session on a new client, which is closed with the trial, too.
func (t *trial) process(ctx context.Context) (session, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{t.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return session{}, fmt.Errorf("client: %w", err)
	}
	t.clients = append(t.clients, c)
	return t.session(ctx, c)
}

// rivals returns n lockers of one name, each with a client and a session, as in n processes.
func (t *trial) rivals(ctx context.Context, n int) (lockers []locker, err error) {
	for range n {
		s, err := t.process(ctx)
		if err != nil {
			return nil, err
		}
		lockers = append(lockers, s.locker(t.lock()))
	}
	return lockers, nil
}

// housemates returns n lockers of one name in one process. They share a client and, unless the implementation is alone,
// a session.
func (t *trial) housemates(ctx context.Context, n int) (lockers []locker, err error) {
	s, err := t.process(ctx)
	for i := range n {
		if i > 0 && t.impl.alone {
			s, err = t.session(ctx, t.clients[0])
		}
		if err != nil {
			return nil, err
		}
		lockers = append(lockers, s.locker(t.lock()))
	}
	return lockers, nil
}

// owners returns n lockers of one session, each with a different name.
func (t *trial) owners(ctx context.Context, n int) (lockers []locker, err error) {
	s, err := t.process(ctx)
	if err != nil {
		return nil, err
	}
	for i := range n {
		lockers = append(lockers, s.locker(fmt.Sprint(t.prefix, i)))
	}
	return lockers, nil
}

// close closes sessions and clients. It has a timeout of its own, since ctx may have ended.
func (t *trial) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	errs := make([]error, len(t.sessions))
	var wg sync.WaitGroup
	for i, s := range t.sessions {
		wg.Go(func() { errs[i] = s.close(ctx) })
	}
	wg.Wait()
	for _, c := range t.clients {
		errs = append(errs, c.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func (t *trial) measure(ctx context.Context, work func() error) (sample, error) {
	server, err := readServer(ctx, t.endpoint)
	if err != nil {
		return sample{}, err
	}
	client, start := readClient(), time.Now()
	if err := work(); err != nil {
		return sample{}, err
	}
	s := sample{elapsed: time.Since(start), cost: readClient().minus(client)}
	after, err := readServer(ctx, t.endpoint)
	s.cost = s.cost.plus(after.minus(server))
	return s, err
}

// repeat measures run after a warm-up. Run returns how long each operation took.
func (t *trial) repeat(ctx context.Context, run func(lasting time.Duration) ([]time.Duration, error)) ([]sample, error) {
	if _, err := run(t.scale.warmUp); err != nil {
		return nil, err
	}
	var took []time.Duration
	s, err := t.measure(ctx, func() (err error) {
		took, err = run(t.scale.lasting)
		return err
	})
	s.ops, s.latencies = len(took), took
	return []sample{s}, err
}

// each calls do for 0 to n-1 concurrently and returns the first error. An error cancels the other calls, which could
// otherwise wait for a lock forever.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	calls, ctx := errgroup.WithContext(ctx)
	for i := range n {
		calls.Go(func() error { return do(ctx, i) })
	}
	return calls.Wait()
}

// sleep waits for the given time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cost is what the server and the clients have used since they started, or between two readings.
type cost [costs]float64

const (
	requests  = iota // unary requests, and messages on watch streams, each of which begins or ends a watch
	renewals         // messages on keep-alive streams
	commits          // entries of the server's log
	fsyncs           // syncs of that log
	serverCPU        // seconds
	clientCPU        // seconds, of this process
	allocs           // of this process
	costs
)

func (c cost) plus(other cost) cost {
	for i := range c {
		c[i] += other[i]
	}
	return c
}

func (c cost) minus(other cost) cost {
	for i := range c {
		c[i] -= other[i]
	}
	return c
}

func readClient() cost {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for bad arguments
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return cost{
		clientCPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds(),
		allocs:    float64(memory.Mallocs),
	}
}

// readServer returns what the server has used.
func readServer(ctx context.Context, endpoint string) (c cost, err error) {
	all, err := etcdproc.Metrics(ctx, http.DefaultClient, "http://"+endpoint)
	if err != nil {
		return cost{}, err
	}
	for _, m := range metrics {
		found := m.label != "" // there may be none yet
		for name, value := range all {
			if name == m.name || strings.HasPrefix(name, m.name+"{") && strings.Contains(name, m.label) {
				c[m.field] += m.factor * value
				found = true
			}
		}
		if !found {
			return cost{}, fmt.Errorf("read the server's metrics: no %s", m.name)
		}
	}
	return c, nil
}

// awaitNoStream waits until the server has noticed that all streams of earlier rounds have ended: it counts their ends,
// and the next round would pay for them.
func awaitNoStream(ctx context.Context, endpoint string) error {
	for {
		all, err := etcdproc.Metrics(ctx, http.DefaultClient, "http://"+endpoint)
		if err != nil {
			return err
		}
		open := 0.0
		for name, value := range all {
			switch {
			case !strings.Contains(name, `grpc_type="bidi_stream"`):
			case strings.HasPrefix(name, "grpc_server_started_total{"):
				open += value
			case strings.HasPrefix(name, "grpc_server_handled_total{"):
				open -= value
			}
		}
		if open == 0 {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// metrics are what is added to a field. The server counts messages on a stream by calls of Recv, and the last call of
// each stream returns its end instead of a message.
var metrics = []struct {
	name, label string
	field       int
	factor      float64
}{
	{"grpc_server_started_total", `grpc_type="unary"`, requests, 1},
	{"grpc_server_msg_received_total", `grpc_method="Watch"`, requests, 1},
	{"grpc_server_handled_total", `grpc_method="Watch"`, requests, -1},
	{"grpc_server_msg_received_total", `grpc_method="LeaseKeepAlive"`, renewals, 1},
	{"grpc_server_handled_total", `grpc_method="LeaseKeepAlive"`, renewals, -1},
	{"etcd_server_proposals_committed_total", "", commits, 1},
	{"etcd_disk_wal_fsync_duration_seconds_count", "", fsyncs, 1},
	{"process_cpu_seconds_total", "", serverCPU, 1},
}
