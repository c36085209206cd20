package storage_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// A server that is 5,000 commits behind refuses whatever writes. Sessions live on, acquisitions wait for better times.
func TestTooManyRequests_areWaitedOut(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	// A lease that outlasts the stall on a busy machine: none is granted while nothing is applied.
	s := rig.NewSession(t, srv.Client(t, etcdtest.Dial(in.DialOptions()...)), lease.Options{TTL: 9 * time.Second})
	id := s.Status().LeaseID
	held, err := s.Lock(rig.Bounded(t), "held")
	require.NoError(t, err)

	release := stall(t, srv)
	fillBacklog(t, srv, 5000)
	require.ErrorIs(t, second(srv.Client(t).Put(rig.Bounded(t), "flood", "")), rpctypes.ErrTooManyRequests)

	sent := in.Sent(faults.Txn)
	locked := make(chan *lease.Lock, 1)
	go func() {
		l, err := s.Lock(rig.Bounded(t), "new")
		if err != nil {
			t.Errorf("lock: %v", err)
		}
		locked <- l
	}()
	unlocked := make(chan error, 1)
	go func() { unlocked <- held.Unlock(rig.Bounded(t)) }()
	require.NoError(t, in.AwaitSent(rig.Bounded(t), faults.Txn, sent+6), "they are sent again")
	// One that gives up leaves nothing. It gives up as it is sent again, for then it has been refused.
	ctx, giveUp := context.WithCancel(rig.Bounded(t))
	defer giveUp()
	var tries atomic.Int32
	in.OnRequest(func(_ string, req any) {
		if strings.Contains(fmt.Sprint(req), "given up/") && tries.Add(1) == 2 {
			giveUp()
		}
	})
	err = second(s.Lock(ctx, "given up"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "too many requests")
	rig.AwaitRenewal(t, s)
	require.Empty(t, locked)
	require.Empty(t, unlocked)

	release()
	l := rig.Await(t, locked, "no lock")
	require.NoError(t, rig.Await(t, unlocked, "no unlock"))
	require.Equal(t, id, s.Status().LeaseID)
	require.NoError(t, l.Err())
	require.NoError(t, l.Unlock(rig.Bounded(t)))
	require.Empty(t, srv.Keys(t, "given up/"))
	rig.CloseAll(t, srv.Client(t), []*lease.Session{s}, "held", "new", "given up")
}

// A defragmentation holds a member up for as long as it takes. With others there, no request has to wait for it. Events do:
// a waiter whose watch stands there is told of its turn when the member goes on.
func TestDefragment_holdsNobodyUp(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			s := rig.NewSession(t, cluster.Client(t), lease.Options{TTL: rig.MinTTL})
			id := s.Status().LeaseID
			held, err := way.Take(rig.Bounded(t), s, "held "+way.Name)
			require.NoError(t, err)
			var last *rig.Hold
			for _, m := range cluster.Members {
				release := stall(t, m)
				// It lasts until a whole turn was taken and the lease was renewed.
				l, err := way.Take(rig.Bounded(t), s, "turn "+way.Name)
				require.NoError(t, err)
				if last != nil {
					require.Greater(t, l.Token(), last.Token())
				}
				last = l
				require.NoError(t, l.Free(rig.Bounded(t)))
				rig.AwaitRenewal(t, s)
				release()
				_, err = cluster.Client(t).Defragment(rig.Bounded(t), m.Endpoint())
				require.NoError(t, err)
			}
			require.NoError(t, held.Err())
			require.Equal(t, id, s.Status().LeaseID)
			require.NoError(t, held.Free(rig.Bounded(t)))
		})
	}
}

// A server without others holds everybody up, and its leases for as long: it neither renews nor lets expire what it would
// have to apply. Who has given up by his own clock has, and nobody gets two locks.
func TestDefragment_ofTheOnlyMember(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{TTL: rig.MinTTL})
	held, err := s.Lock(rig.Bounded(t), "n")
	require.NoError(t, err)
	waiting := make(chan *lease.Lock, 1)
	rival := rig.NewSession(t, srv.Client(t), lease.Options{TTL: rig.MinTTL})
	go func() {
		l, err := rival.Lock(rig.Bounded(t), "n")
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		waiting <- l
	}()
	rig.AwaitQueue(t, client, "n", 2)
	release := stall(t, srv)
	ctx, cancel := context.WithTimeout(rig.Bounded(t), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, held.Unlock(ctx), context.DeadlineExceeded)
	rig.AwaitRenewal(t, s)
	rig.AwaitRenewal(t, rival)
	require.Empty(t, waiting)
	release()
	l := rig.Await(t, waiting, "what was to be deleted in the background was not")
	require.Greater(t, l.Token(), held.Token())
	require.NoError(t, l.Unlock(rig.Bounded(t)))
	rig.CloseAll(t, client, []*lease.Session{s, rival}, "n")
}
