package lease_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// With the default options and without jitter: a renewal every 10 s, the deadline 29 s after the send, 5 s of patience,
// at most 5 s for one request.
const (
	ttl      = 30 * time.Second
	usable   = ttl - time.Second
	third    = ttl / 3
	patience = third / 2
	attempt  = 5 * time.Second
)

func TestMain(m *testing.M) {
	// The host's boot clock runs on while a bubble's clock stands still, so deadlines would come out early.
	clock.System = clock.Clock{}
	lease.WithoutJitter()
	os.Exit(m.Run())
}

// env is a session, its client and their server, all in one bubble. Anything it leaves running makes the bubble, and so
// the test, fail.
type env struct {
	srv   *fakeetcd.Server
	c     *fakeetcd.Client
	s     *lease.Session
	began time.Time
	log   *strings.Builder // of the session, unless it has another Logger
}

func start(t *testing.T, opts lease.Options, prepare ...func(*fakeetcd.Client)) *env {
	t.Helper()
	return open(t, newServer(t), opts, prepare...)
}

func newServer(t *testing.T) *fakeetcd.Server {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv
}

// join makes another session on e's server, with a client and so a network of its own.
func (e *env) join(t *testing.T) *env {
	t.Helper()
	return open(t, e.srv, lease.Options{})
}

// open prepares a client and makes a session with it.
func open(t *testing.T, srv *fakeetcd.Server, opts lease.Options, prepare ...func(*fakeetcd.Client)) *env {
	t.Helper()
	e := &env{srv: srv, c: srv.NewClient(t.Context()), began: time.Now(), log: new(strings.Builder)}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(e.log, nil))
	}
	for _, do := range prepare {
		do(e.c)
	}
	s, err := lease.NewSession(t.Context(), e.c.Client, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) }) // what it cannot reach expires
	e.s = s
	return e
}

// at sleeps until d after the start and lets everything happen that is due then.
func (e *env) at(d time.Duration) {
	time.Sleep(time.Until(e.began.Add(d)))
	synctest.Wait()
}

func (e *env) now() time.Duration { return time.Since(e.began) }

// sent returns when the client sent its requests, counted from the start.
func (e *env) sent(m fakeetcd.Method) []time.Duration {
	var at []time.Duration
	for _, call := range e.c.Calls(m) {
		at = append(at, call.Sent.Sub(e.began))
	}
	return at
}

// writes returns the client's transactions that change something; the others only read guarded keys.
func (e *env) writes() []fakeetcd.Call {
	return slices.DeleteFunc(e.c.Calls(fakeetcd.Txn), func(call fakeetcd.Call) bool { return !writes(call) })
}

// writes reports whether a call is a transaction that can change something.
func writes(call fakeetcd.Call) bool {
	var writing func(*pb.TxnRequest) bool
	writing = func(r *pb.TxnRequest) bool {
		return slices.ContainsFunc(slices.Concat(r.Success, r.Failure), func(op *pb.RequestOp) bool {
			return op.GetRequestPut() != nil || op.GetRequestDeleteRange() != nil ||
				op.GetRequestTxn() != nil && writing(op.GetRequestTxn())
		})
	}
	r, ok := call.Request.(*pb.TxnRequest)
	return ok && writing(r)
}

func (e *env) lock(t *testing.T, name string, opts ...lease.LockOption) *lease.Lock {
	t.Helper()
	l, err := e.s.TryLock(t.Context(), name, opts...)
	require.NoError(t, err)
	return l
}

// ended reports when l's context ended, counted from the start. Call it once.
func (e *env) ended(l *lease.Lock) <-chan time.Duration {
	at := make(chan time.Duration, 1)
	context.AfterFunc(l.Context(), func() { at <- e.now() })
	return at
}

// outcome is the result of a call in a goroutine.
type outcome[L any] struct {
	lock L
	err  error
	at   time.Duration
}

type acquired = outcome[*lease.Lock]

// begin calls take in a goroutine and returns when the caller stands in the queue or take has returned.
func begin[L any](e *env, take func() (L, error)) <-chan outcome[L] {
	defer synctest.Wait()
	return inBackground(e, take)
}

func inBackground[L any](e *env, take func() (L, error)) <-chan outcome[L] {
	got := make(chan outcome[L], 1)
	go func() {
		l, err := take()
		got <- outcome[L]{l, err, e.now()}
	}()
	return got
}

// takes are the two ways to take a lock.
var takes = map[string]func(*lease.Session, context.Context, string, ...lease.LockOption) (*lease.Lock, error){
	"Lock": (*lease.Session).Lock, "TryLock": (*lease.Session).TryLock,
}

func (e *env) wait(ctx context.Context, name string, opts ...lease.LockOption) <-chan acquired {
	return begin(e, func() (*lease.Lock, error) { return e.s.Lock(ctx, name, opts...) })
}

// later makes a call in a goroutine.
func later(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

func second[T any](_ T, err error) error { return err }

func (e *env) keys(prefix string) []string {
	var names []string
	for _, kv := range e.srv.Keys(prefix) {
		names = append(names, string(kv.Key))
	}
	return names
}

func (e *env) leaseIDs() []clientv3.LeaseID {
	var ids []clientv3.LeaseID
	for _, l := range e.srv.Leases() {
		ids = append(ids, l.ID)
	}
	return ids
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func requireLive(t *testing.T, l *lease.Lock) {
	t.Helper()
	require.NoError(t, context.Cause(l.Context()))
}

// requireLost checks that err is a loss for this reason, and matches none of the other outcomes.
func requireLost(t *testing.T, err error, reason lease.Reason) {
	t.Helper()
	lossOf(t, err, reason) //nolint:errcheck // the error is the result
}

func lossOf(t *testing.T, err error, reason lease.Reason) *lease.LostError {
	t.Helper()
	require.ErrorIs(t, err, lease.ErrLost)
	var lost *lease.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, reason.String(), lost.Reason.String())
	require.NotErrorIs(t, err, lease.ErrUnlocked)
	require.NotErrorIs(t, err, lease.ErrLocked)
	if reason != lease.ReasonSessionClosed {
		require.NotErrorIs(t, err, lease.ErrClosed)
	}
	return lost
}

// receive fails the test if nothing comes for a day: renewals keep a bubble's clock going forever, so a missing event
// would never end the test.
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

// granted is receive for a call that must succeed.
func granted[L any](t *testing.T, ch <-chan outcome[L]) outcome[L] {
	t.Helper()
	got := receive(t, ch)
	require.NoError(t, got.err)
	return got
}

func requirePending[T any](t *testing.T, ch <-chan T) {
	t.Helper()
	select {
	case v := <-ch:
		require.FailNow(t, "too early", "%+v", v)
	default:
	}
}

// errDenied is an error that the client does not retry, and that leasefence retries only for a renewal.
var errDenied = rpctypes.ErrGRPCPermissionDenied

// bubble runs a test in a bubble with a session of its own, which has the default options.
func bubble(t *testing.T, test func(*testing.T, *env)) {
	t.Helper()
	bubbleWith(t, lease.Options{}, test)
}

func bubbleWith(t *testing.T, opts lease.Options, test func(*testing.T, *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, start(t, opts)) })
}

// bubbleOf is bubble for a sub-test.
func bubbleOf(t *testing.T, name string, test func(*testing.T, *env)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// inBubble runs a sub-test in a bubble of its own.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
