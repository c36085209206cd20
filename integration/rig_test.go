package integration_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// faultTTL is the TTL of sessions that tests disturb: attempts are repeated after a second, orphans are looked for
// once a second, and a busy machine does not lose the lease.
const faultTTL = 3 * time.Second

// lockRig is a session whose messages a test can meddle with.
type lockRig struct {
	srv    *etcdtest.Server
	in     *faults.Interceptor
	client *clientv3.Client
	*lease.Session
}

func newLockRig(t *testing.T, srv *etcdtest.Server, opts lease.Options, via ...etcdtest.ClientOption) *lockRig {
	t.Helper()
	in := faults.NewInterceptor(t)
	client := srv.Client(t, append(via, etcdtest.Dial(in.DialOptions()...))...)
	return &lockRig{srv: srv, in: in, client: client, Session: newSession(t, client, opts)}
}

// leaseID is the session's present lease.
func (r *lockRig) leaseID() clientv3.LeaseID { return r.Status().LeaseID }

// attempt is a Lock under way.
type attempt struct {
	l     *lease.Lock
	err   error
	asked chan struct{} // closed when it has its place in the session's order
	done  chan struct{}
}

// asked is a context that tells when somebody first asks for its end. Lock does when it stands in its session's order,
// which nothing else shows.
type asked struct {
	context.Context //nolint:containedctx // it is the context

	once *sync.Once
	c    chan struct{}
}

func (a asked) Done() <-chan struct{} {
	a.once.Do(func() { close(a.c) })
	return a.Context.Done()
}

// goLock begins to wait for a lock.
func goLock(ctx context.Context, s *lease.Session, name string) *attempt {
	a := &attempt{asked: make(chan struct{}), done: make(chan struct{})}
	ctx = asked{ctx, new(sync.Once), a.asked} //nolint:contextcheck // it is ctx
	go func() {
		defer close(a.done)
		a.l, a.err = s.Lock(ctx, name)
	}()
	return a
}

// standing waits until the attempt has its place in its session's order.
func (a *attempt) standing(t *testing.T) *attempt {
	t.Helper()
	awaitClosed(t, a.asked, "Lock has no place in the order")
	return a
}

// result waits until the attempt has returned.
func (a *attempt) result(t *testing.T) (*lease.Lock, error) {
	t.Helper()
	awaitClosed(t, a.done, "Lock did not return")
	return a.l, a.err
}

// granted waits for the lock.
func (a *attempt) granted(t *testing.T) *lease.Lock {
	t.Helper()
	l, err := a.result(t)
	require.NoError(t, err)
	return l
}

// waiting checks that the attempt has not returned.
func (a *attempt) waiting(t *testing.T) {
	t.Helper()
	select {
	case <-a.done:
		require.FailNow(t, "Lock returned while another holds the lock", "lock %v, error %v", a.l, a.err)
	default:
	}
}

// awaitClosed waits for an event that a channel stands for.
func awaitClosed[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.FailNow(t, what)
	}
}

// awaitQueue waits until n keys stand below the name's prefix and returns them.
func awaitQueue(t *testing.T, srv *etcdtest.Server, name string, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		keys := srv.Keys(t, name+"/")
		if len(keys) == n {
			return keys
		}
		require.True(t, time.Now().Before(deadline), "want %d keys in the queue of %q, there are %q", n, name, keys)
	}
}

// requireHeld checks that the handle is live, its key there and its token the key's create revision.
func requireHeld(t *testing.T, srv *etcdtest.Server, l *lease.Lock) {
	t.Helper()
	require.NoError(t, context.Cause(l.Context()))
	kvs := srv.KeyValues(t, l.Key())
	require.Len(t, kvs, 1, "the key of a held lock")
	require.Equal(t, l.Token().Revision(), kvs[0].CreateRevision)
	require.NoError(t, context.Cause(l.Context()))
}

// requireFree checks that nothing of an earlier attempt stays: the queue empties and the next one gets the lock.
func requireFree(t *testing.T, srv *etcdtest.Server, rival *lease.Session, name string) {
	t.Helper()
	awaitQueue(t, srv, name, 0)
	l := mustLock(t, rival, name)
	require.Equal(t, []string{l.Key()}, srv.Keys(t, name+"/"))
	require.NoError(t, l.Unlock(bounded(t)))
	require.Empty(t, srv.Keys(t, name+"/"))
}

// lostFor checks that an error is a typed loss with the reason.
func lostFor(t *testing.T, err error, want lease.Reason) {
	t.Helper()
	require.ErrorIs(t, err, lease.ErrLost)
	lost, ok := errors.AsType[*lease.LostError](err)
	require.True(t, ok, "a *LostError in %v", err)
	require.Equal(t, want, lost.Reason, "%v", err)
}

// The transactions of a lock, told apart by what they do if their condition holds, alone or in a commit that is shared.

// isEnter is one that enters the queue: an acquisition's, or a hand-over's.
func isEnter(message any) bool {
	return thenDoes(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestPut() != nil })
}

// isLongEnter is one that enters whoever stands there; the short one enters only if nobody does.
func isLongEnter(message any) bool {
	return isEnter(message) && len(message.(*etcdserverpb.TxnRequest).Compare[0].RangeEnd) == 0
}

// isLook is a waiter's look at who is ahead.
func isLook(message any) bool {
	return isRead(message) && len(message.(*etcdserverpb.TxnRequest).Compare) > 0
}

// isRead only reads: a look, or the read of keys that are watched.
func isRead(message any) bool {
	return thenDoes(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestRange() != nil }) &&
		!isEnter(message) && !isLeave(message)
}

// isLeave is Unlock's, a hand-over or not.
func isLeave(message any) bool {
	return !isSweep(message) &&
		thenDoes(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
}

// isHandOver is Unlock's where somebody of the session waits.
func isHandOver(message any) bool { return isEnter(message) && isLeave(message) }

// isSweep is the one that clears up after failed attempts. Two Unlocks that share a commit look the same.
func isSweep(message any) bool {
	txn, ok := message.(*etcdserverpb.TxnRequest)
	return ok && len(txn.Success) > 0 && !slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		deletion := op.GetRequestTxn()
		return len(deletion.GetSuccess()) != 1 || deletion.Success[0].GetRequestDeleteRange() == nil
	})
}

func thenDoes(message any, what func(*etcdserverpb.RequestOp) bool) bool {
	txn, ok := message.(*etcdserverpb.TxnRequest)
	return ok && slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		return what(op) || op.GetRequestTxn() != nil && thenDoes(op.GetRequestTxn(), what)
	})
}

// watchesKey is a request for a watch on the key.
func watchesKey(message any, key string) bool {
	req, ok := message.(*etcdserverpb.WatchRequest)
	return ok && string(req.GetCreateRequest().GetKey()) == key
}

// sweeps is a channel that is closed when the server has confirmed that it cleared up after a failed attempt.
func sweeps(r *lockRig) <-chan struct{} {
	swept := make(chan struct{})
	var once sync.Once
	r.in.OnAnswer(func(_ string, req, _ any) {
		if isSweep(req) {
			once.Do(func() { close(swept) })
		}
	})
	return swept
}

// queueEvents is what happens below a name's prefix.
type queueEvents struct {
	name   string
	events chan *clientv3.Event
}

// watchQueue begins to watch a name's queue.
func watchQueue(t *testing.T, srv *etcdtest.Server, name string) *queueEvents {
	t.Helper()
	q := &queueEvents{name: name, events: make(chan *clientv3.Event, 1000)}
	watch := srv.Client(t).Watch(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	created := <-watch
	require.NoError(t, created.Err())
	go func() {
		for resp := range watch {
			for _, ev := range resp.Events {
				q.events <- ev
			}
		}
	}()
	return q
}

// appears waits for the next event, which must be a new key.
func (q *queueEvents) appears(t *testing.T) { t.Helper(); q.next(t, clientv3.EventTypePut) }

// disappears waits for the next event, which must be a deletion.
func (q *queueEvents) disappears(t *testing.T) { t.Helper(); q.next(t, clientv3.EventTypeDelete) }

func (q *queueEvents) next(t *testing.T, want mvccpb.Event_EventType) {
	t.Helper()
	select {
	case ev := <-q.events:
		require.Equal(t, want, ev.Type, "%v", ev)
	case <-time.After(patience):
		require.FailNow(t, "nothing happened in the queue", "of %q, want %v", q.name, want)
	}
}

// second drops a handle that a test does not expect.
func second(_ *lease.Lock, err error) error { return err }

// second2 drops an answer that a test does not need.
func second2[T any](_ T, err error) error { return err }
