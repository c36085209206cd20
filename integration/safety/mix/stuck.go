package mix

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdproc/slowdisk"
)

// slowDisk delays each write of one or all members to their logs. In one of four cases it delays the leader by more
// than a TTL: another member is elected, and the old leader wakes up like a member that was paused.
func slowDisk(s *strike) bool {
	if !s.slowDisks {
		return false
	}
	members, d := s.cluster.Members, millis(s.rng, 50, 300)
	if s.rng.IntN(4) > 0 {
		members = []*etcdproc.Process{pick(s.rng, members)}
	}
	hangs := s.rng.IntN(4) == 0
	if leader, _ := s.leader(); hangs && leader != nil {
		members, d = []*etcdproc.Process{leader}, s.ttl+500*time.Millisecond
	}
	s.begin(endpoints(members))
	woken := s.expectWoken(members)
	set := func(d time.Duration) bool {
		hit := true
		for _, m := range members {
			hit = slowdisk.Set(m.Dir(), d) == nil && hit
		}
		return hit
	}
	hit := set(d)
	s.last(1000, 4000)
	woken.begin()
	hit = set(0) && hit
	sleep(s.life, d) // until the last slow write is done
	woken.end()
	return hit
}

// smallTransactions limits the operations that a member accepts in a transaction.
func smallTransactions(s *strike, m *etcdproc.Process) bool {
	const few = 4
	as := m.Settings()
	small := as
	small.MaxTxnOps = few
	if !restart(s, m, small) {
		return false
	}
	hit := s.refuses(m, few+1)
	s.last(1500, 4000)
	return restart(s, m, as) && hit
}

// refuses reports whether a member refuses a transaction of that many operations.
func (s *strike) refuses(m *etcdproc.Process, ops int) bool {
	etcd, err := s.dial(m)
	if err != nil {
		return false
	}
	defer func() { _ = etcd.Close() }()
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	list := make([]clientv3.Op, ops)
	for i := range list {
		list[i] = clientv3.OpGet("\x00" + string(rune('a'+i)))
	}
	_, err = etcd.Txn(ctx).Then(list...).Commit()
	return errors.Is(err, rpctypes.ErrTooManyOps)
}

// tooMany makes a member apply nothing while the others go on, until it is so far behind that it refuses requests, and
// for a while after that.
func tooMany(s *strike, m *etcdproc.Process) bool {
	etcd, err := s.dial(m)
	if err != nil {
		return false
	}
	defer func() { _ = etcd.Close() }()
	flooder, err := s.dial(s.others(m)...)
	if err != nil {
		return false
	}
	defer func() { _ = flooder.Close() }()
	woken := s.expectWoken([]*etcdproc.Process{m})
	if m.Stall() != nil {
		return false
	}
	hit := s.flood(flooder, etcd)
	if hit {
		s.last(100, 1000)
	}
	woken.begin()
	hit = m.GoOn() == nil && hit
	woken.end()
	return hit
}

// flood makes the cluster commit requests that change nothing. It reports whether the member then refused a request.
func (s *strike) flood(flooder, member *clientv3.Client) bool {
	const (
		senders = 64
		patient = 6 * time.Second
		nobody  = clientv3.LeaseID(1)
	)
	ctx, cancel := context.WithTimeout(s.ctx, patient)
	defer cancel()
	var refused atomic.Bool
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = flooder.Revoke(ctx, nobody) // there is no such lease
			}
		})
	}
	for ctx.Err() == nil && !refused.Load() {
		attempt, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		_, err := member.Revoke(attempt, nobody)
		stop()
		refused.Store(errors.Is(err, rpctypes.ErrTooManyRequests))
	}
	cancel()
	wg.Wait()
	return refused.Load()
}
