package mix

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// slowDisk delays each sync of the logs of one or all members. In one of four cases it delays the leader by more
// than a TTL: another member is elected, and the old leader wakes up like a member that was paused.
func slowDisk(s *strike) bool {
	members, d := s.cluster.Members, millis(s.rng, 50, 300)
	if s.rng.IntN(4) > 0 {
		members = []*etcdproc.Process{pick(s.rng, members)}
	}
	hangs := s.rng.IntN(4) == 0
	if leader, _ := s.leader(); hangs && leader != nil {
		members, d = []*etcdproc.Process{leader}, ttl+500*time.Millisecond
	}
	s.begin(endpoints(members))
	set := func(d time.Duration) bool {
		hit := true
		for _, m := range members {
			hit = m.SlowDisk(d) == nil && hit
		}
		return hit
	}
	hit := set(d)
	s.last(1000, 4000)
	return s.waking(s.expired(members), func() bool {
		hit = set(0) && hit
		sleep(s.life, d) // until the last slow write is done
		return hit
	})
}

// smallTransactions limits the operations that a member accepts in a transaction.
func smallTransactions(s *strike, m *etcdproc.Process) bool {
	const few = 4
	as := m.Settings()
	small := as
	small.MaxTxnOps = few
	hit := restart(s, m, small) && s.refuses(m, few+1)
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
	list := slices.Repeat([]clientv3.Op{clientv3.OpGet("a")}, ops)
	return errors.Is(s.bounded(s.ctx, func(ctx context.Context) error {
		_, err := etcd.Txn(ctx).Then(list...).Commit()
		return err
	}), rpctypes.ErrTooManyOps)
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
	if m.Stall() != nil {
		return false
	}
	hit := s.flood(flooder, etcd)
	if hit {
		s.last(100, 1000)
	}
	return s.waking(s.expired([]*etcdproc.Process{m}), func() bool { return m.GoOn() == nil && hit })
}

// flood makes the cluster commit requests that change nothing. It reports whether the member then refused a request.
func (s *strike) flood(flooder, member *clientv3.Client) bool {
	const (
		senders = 64
		patient = 6 * time.Second
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
