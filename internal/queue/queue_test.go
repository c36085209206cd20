package queue_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// env is a queue and its server, in one bubble.
type env struct {
	*queue.Queue

	srv      *fakeetcd.Server
	c        *fakeetcd.Client
	lease    clientv3.LeaseID
	began    time.Time
	life     context.Context    //nolint:containedctx // of spawned goroutines
	endLease context.CancelFunc // ends the life of the lease, which ends before the other
	tasks    sync.WaitGroup

	mu       sync.Mutex
	reported []string
}

// place is an entry that has entered, and what was ahead of it.
type place struct {
	queue.Entry

	ahead queue.Ahead
}

// bubble runs a test in a bubble with a server of its own.
func bubble(t *testing.T, test func(*testing.T, *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		t.Cleanup(srv.Close)
		test(t, connect(t, srv))
	})
}

// bubbleOf is bubble for a sub-test.
func bubbleOf(t *testing.T, name string, test func(*testing.T, *env)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// another returns a second process with a lease and a network of its own.
func (e *env) another(t *testing.T) *env {
	t.Helper()
	return connect(t, e.srv)
}

func connect(t *testing.T, srv *fakeetcd.Server) *env {
	t.Helper()
	e := &env{srv: srv, c: srv.NewClient(t.Context()), began: time.Now()}
	granted, err := e.c.Grant(t.Context(), 3600)
	require.NoError(t, err)
	e.lease = granted.ID
	life, end := context.WithCancel(context.WithoutCancel(t.Context())) // t's context has ended before Cleanup
	e.life = life
	ofLease, endLease := context.WithCancel(life)
	e.endLease = endLease
	t.Cleanup(func() {
		end()
		e.tasks.Wait()
	})
	conn := etcd.Of(e.c.Client)
	e.Queue = &queue.Queue{
		Life:  ofLease,
		Conn:  conn,
		Line:  etcd.NewLine(conn, etcd.LineOptions{Bound: 5 * time.Second, Spawn: e.spawn}),
		Bound: 5 * time.Second,
		Report: func(prefix string, n int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.reported = append(e.reported, fmt.Sprint(n, " below ", prefix))
		},
	}
	return e
}

// once returns a single attempt.
func (e *env) once(ctx context.Context) *etcd.Attempt { return e.Conn.Once(ctx) }

// spawn runs f in a goroutine that ends with the test.
func (e *env) spawn(f func(context.Context)) bool {
	if e.life.Err() != nil {
		return false
	}
	e.tasks.Go(func() { f(e.life) })
	return true
}

func (e *env) now() time.Duration { return time.Since(e.began) }

func (e *env) at(d time.Duration) {
	time.Sleep(time.Until(e.began.Add(d)))
	synctest.Wait()
}

func (e *env) entry(suffix string) queue.Entry { return queue.NewEntry("a", e.lease, suffix) }

// enter enters the queue "a".
func (e *env) enter(t *testing.T, suffix string) place {
	t.Helper()
	return e.into(t, "a", suffix)
}

func (e *env) into(t *testing.T, name, suffix string) place {
	t.Helper()
	entered, ahead, err := e.Enter(e.once(t.Context()), queue.NewEntry(name, e.lease, suffix), suffix)
	require.NoError(t, err)
	return place{entered, ahead}
}

func (e *env) leave(t *testing.T, p place) {
	t.Helper()
	left, err := e.Leave(e.once(t.Context()), p.Entry)
	require.NoError(t, err)
	require.True(t, left)
}

func (e *env) keys() []string {
	var names []string
	for _, kv := range e.srv.Keys("") {
		names = append(names, string(kv.Key))
	}
	return names
}

// plant creates n keys in one transaction, so that they share a create revision.
func (e *env) plant(t *testing.T, prefix string, n int, opts ...clientv3.OpOption) {
	t.Helper()
	var ops []clientv3.Op
	for i := range n {
		ops = append(ops, clientv3.OpPut(prefix+string(rune('a'+i)), "", opts...))
	}
	_, err := e.c.Txn(t.Context()).Then(ops...).Commit()
	require.NoError(t, err)
}

// outcome is the result of a call in a goroutine, and when it returned.
type outcome[T any] struct {
	val T
	err error
	at  time.Duration
}

func inBackground[T any](e *env, call func() (T, error)) <-chan outcome[T] {
	got := make(chan outcome[T], 1)
	go func() {
		val, err := call()
		got <- outcome[T]{val, err, e.now()}
	}()
	synctest.Wait()
	return got
}

// requireAhead checks p's nearest contender, and whether that is the owner.
func requireAhead(t *testing.T, p, nearest place, owner bool) {
	t.Helper()
	require.Equal(t, []any{nearest.Key, nearest.Rev, owner, false}, []any{p.ahead.Key, p.ahead.Rev, p.ahead.Owner, p.ahead.None})
}

func (e *env) await(ctx context.Context, p place) <-chan outcome[struct{}] {
	return inBackground(e, func() (struct{}, error) { return struct{}{}, e.Await(ctx, p.Entry, p.ahead) })
}

// receive fails the test if nothing comes for a day: renewals keep the bubble's clock running, so a hang is no
// deadlock.
func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	bound := time.NewTimer(24 * time.Hour)
	defer bound.Stop()
	select {
	case v := <-ch:
		return v
	case <-bound.C:
		require.FailNow(t, "nothing has come for a day")
		panic("unreachable")
	}
}

func requirePending[T any](t *testing.T, ch <-chan T) {
	t.Helper()
	select {
	case v := <-ch:
		require.FailNow(t, "too early", "%+v", v)
	default:
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
