package integration_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// keyLog is a slog.Handler that counts the records of keys, by the queue and the create revision that they tell.
type keyLog struct {
	slog.Handler

	mu   sync.Mutex // guards keys
	keys map[string]int
}

func newKeyLog() *keyLog {
	return &keyLog{Handler: slog.DiscardHandler, keys: map[string]int{}}
}

// told is how a key is told of in a log, which does not name it.
func told(below string, created int64) string { return fmt.Sprintf("%s at %d", below, created) }

// Enabled makes slog build the records.
func (*keyLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle counts.
func (k *keyLog) Handle(_ context.Context, r slog.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var below string
	var created int64
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "below":
			below = a.Value.String()
		case "revision":
			created = a.Value.Int64()
		}
		return true
	})
	if below != "" {
		k.keys[told(below, created)]++
	}
	return nil
}

func (k *keyLog) reports() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.keys)
}

// hexOf is a lease as it stands in keys.
func hexOf(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

// plant puts n keys into a name's queue that are no contenders, and returns them. With atOnce they are created in
// transactions of up to 100, so that many share a create revision.
func plant(t *testing.T, client *clientv3.Client, name string, n int, atOnce bool) []string {
	t.Helper()
	granted, err := client.Grant(bounded(t), 3600)
	require.NoError(t, err)
	var keys []string
	var ops []clientv3.Op
	for i := range n {
		key, opts := fmt.Sprintf("%s/planted-%d", name, i), []clientv3.OpOption{}
		switch i % 4 {
		case 0: // without a lease, though it looks like a contender's
			key = fmt.Sprintf("%s/%s-%d", name, hexOf(granted.ID), i)
		case 1: // with the hex of another's lease
			key = fmt.Sprintf("%s/%s-%d", name, hexOf(granted.ID+1), i)
			opts = append(opts, clientv3.WithLease(granted.ID))
		case 2: // with a lease, and not a word of it in the key
			opts = append(opts, clientv3.WithLease(granted.ID))
		}
		keys = append(keys, key)
		ops = append(ops, clientv3.OpPut(key, "planted", opts...))
		if !atOnce || len(ops) == 100 || i == n-1 {
			_, err := client.Txn(bounded(t)).Then(ops...).Commit()
			require.NoError(t, err)
			ops = nil
		}
	}
	return keys
}

// TestLock_plantedKeys is pain 10: keys in the queue that are no contenders block nobody, for ever or for a while, and
// each is reported once. It plants few, and more than fit a page of the search for the holder.
func TestLock_plantedKeys(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	operator := srv.Client(t)
	for _, row := range []struct {
		planted int
		atOnce  bool
	}{{1, false}, {4, false}, {300, false}, {700, true}} {
		t.Run(fmt.Sprintf("%d %v", row.planted, row.atOnce), func(t *testing.T) {
			name := fmt.Sprintf("n%d", row.planted)
			log := newKeyLog()
			s := newSession(t, srv.Client(t), lease.Options{Owner: "me", Logger: slog.New(log)})
			other := newSession(t, srv.Client(t), lease.Options{})
			rival := newSession(t, srv.Client(t), lease.Options{})
			planted := plant(t, operator, name, row.planted, row.atOnce)
			// This one is somebody's who took the hex of a lease for a name of locks.
			granted, err := operator.Grant(bounded(t), 3600)
			require.NoError(t, err)
			nested := name + "/" + hexOf(granted.ID) + "/" + hexOf(granted.ID)
			require.NoError(t, second2(operator.Put(bounded(t), nested, "", clientv3.WithLease(granted.ID))))

			// Older than everyone.
			l, err := s.TryLock(bounded(t), name)
			require.NoError(t, err)
			requireHeld(t, srv, l)
			_, err = rival.TryLock(bounded(t), name)
			var locked *lease.LockedError
			require.ErrorAs(t, err, &locked)
			require.Equal(t, lease.LockedError{Name: name, Owner: "me", Key: l.Key(), Token: l.Token()}, *locked)
			require.NoError(t, l.Unlock(bounded(t)))

			// Older than the holder, and between the holder and those who wait.
			l = mustLock(t, other, name)
			between := plant(t, operator, name+"/nested", row.planted, row.atOnce)
			lonely := name + "/lonely"
			require.NoError(t, second2(operator.Put(bounded(t), lonely, "")))
			all := len(planted) + len(between) + 2
			second := goLock(bounded(t), rival, name)
			awaitQueue(t, srv, name, all+2)
			third := goLock(bounded(t), s, name)
			awaitQueue(t, srv, name, all+3)
			second.waiting(t)
			require.NoError(t, l.Unlock(bounded(t)))
			l = second.granted(t)
			third.waiting(t)
			require.NoError(t, l.Unlock(bounded(t)))
			require.NoError(t, third.granted(t).Unlock(bounded(t)))
			require.Len(t, srv.Keys(t, name+"/"), all, "they are somebody's, and stay")

			want := map[string]int{} // those of the nested name not at all
			for _, kv := range srv.KeyValues(t, name+"/") {
				if key := string(kv.Key); key == lonely || slices.Contains(planted, key) {
					want[told(name+"/", kv.CreateRevision)]++
				}
			}
			require.Equal(t, want, log.reports())
		})
	}
}

// TestLock_contenderOfAnotherKind checks the other side of pain 10: a key that has the form of etcd's own is a
// contender, whatever it holds, and is waited for.
func TestLock_contenderOfAnotherKind(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	operator := srv.Client(t)
	s := newSession(t, srv.Client(t), lease.Options{})
	for _, suffix := range []string{"", "-other", "x"} {
		granted, err := operator.Grant(bounded(t), 3600)
		require.NoError(t, err)
		key := "n/" + hexOf(granted.ID) + suffix
		put, err := operator.Put(bounded(t), key, "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		_, err = s.TryLock(bounded(t), "n")
		var locked *lease.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, key, locked.Key)
		require.Empty(t, locked.Owner)
		require.Equal(t, put.Header.Revision, locked.Token.Revision())
		waiter := goLock(bounded(t), s, "n")
		awaitQueue(t, srv, "n", 2)
		waiter.waiting(t)
		srv.Revoke(t, granted.ID)
		require.NoError(t, waiter.granted(t).Unlock(bounded(t)))
	}
	require.Empty(t, srv.Keys(t, "n/"))
}

// TestTryLock_overtakenOnTheLongWay is TryLock past a planted key, while somebody else enters between its look at the
// queue and its own entry: it leaves again, and does not wait in the queue of others.
func TestTryLock_overtakenOnTheLongWay(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	planted := plant(t, srv.Client(t), "n", 1, false)
	var entries int
	var holder *lease.Lock
	rig.in.OnRequest(func(_ string, req any) {
		if !isLongEnter(req) {
			return
		}
		if entries++; entries == 1 {
			holder = mustLock(t, rival, "n")
		}
	})
	_, err := rig.TryLock(bounded(t), "n")
	var locked *lease.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, 1, entries)
	require.Equal(t, holder.Key(), locked.Key)
	require.ElementsMatch(t, append(planted, holder.Key()), srv.Keys(t, "n/"))
	require.NoError(t, holder.Unlock(bounded(t)))
	awaitQueue(t, srv, "n", 1)
}

// TestTryLock_refusedAfterEntering is P4 on TryLock's long way, past planted keys: it enters first and then looks who is
// ahead. If that look is refused for as long as the caller has patience, the key that has entered must not stay.
func TestTryLock_refusedAfterEntering(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	ctx, cancel := context.WithCancelCause(bounded(t))
	defer cancel(nil)
	var entered atomic.Bool
	var refusals atomic.Int64
	refuse := func(
		call context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if (method == faults.Range || method == faults.Txn && isEnter(req)) && entered.Load() {
			if refusals.Add(1) == 2 {
				cancel(errGaveUp)
			}
			return status.Error(codes.ResourceExhausted, "etcdserver: too many requests")
		}
		if isLongEnter(req) {
			defer entered.Store(true)
		}
		return invoke(call, method, req, reply, cc, opts...)
	}
	s := newSession(t, srv.Client(t, etcdtest.Dial(grpc.WithChainUnaryInterceptor(refuse))), lease.Options{TTL: faultTTL})
	plant(t, srv.Client(t), "n", 1, false)
	l, err := s.TryLock(ctx, "n")
	require.ErrorIs(t, err, errGaveUp)
	require.Nil(t, l)
	require.EqualValues(t, 2, refusals.Load())
	awaitQueue(t, srv, "n", 1)
}
