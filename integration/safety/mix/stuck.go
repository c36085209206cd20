package mix

import (
	"context"
	"errors"
	"slices"
	"sync"
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
	if leader := s.leader(); hangs && leader != nil {
		members, d = []*etcdproc.Process{leader}, ttl+500*time.Millisecond
	}
	s.begin((&etcdproc.Cluster{Members: members}).Endpoints()...)
	hit := each(members, func(m *etcdproc.Process) error { return m.SlowDisk(d) })
	s.last(1000, 4000)
	return s.waking(members, func() bool { return hit }, func() bool {
		defer sleep(s.life, d) // until the last slow write is done
		return each(members, func(m *etcdproc.Process) error { return m.SlowDisk(0) })
	})
}

// smallTransactions limits the operations that a member accepts in a transaction.
func smallTransactions(s *strike, m *etcdproc.Process) bool {
	const few = 4
	usual := m.Settings.MaxTxnOps
	m.Settings.MaxTxnOps = few
	hit := restart(s, m) && s.refuses(m, few+1)
	s.last(1500, 4000)
	m.Settings.MaxTxnOps = usual
	return restart(s, m) && hit
}

// refuses reports whether a member refuses a transaction of that many operations.
func (s *strike) refuses(m *etcdproc.Process, ops int) bool {
	list := slices.Repeat([]clientv3.Op{clientv3.OpGet("a")}, ops)
	return errors.Is(s.bounded(s.ctx, func(ctx context.Context) error {
		_, err := s.to(m).Txn(ctx).Then(list...).Commit()
		return err
	}), rpctypes.ErrTooManyOps)
}

// tooMany makes a member apply nothing while the others go on, until it is so far behind that it refuses requests, and
// for a while after that.
func tooMany(s *strike, m *etcdproc.Process) bool {
	if m.Stall() != nil {
		return false
	}
	hit := s.flood(m)
	if hit {
		s.last(100, 1000)
	}
	return s.waking([]*etcdproc.Process{m}, func() bool { return hit }, func() bool { return m.GoOn() == nil })
}

// flood makes the other members commit requests that change nothing. It reports whether the member then refused a
// request.
func (s *strike) flood(m *etcdproc.Process) bool {
	const (
		senders = 32 // to each of the others
		patient = 6 * time.Second
	)
	ctx, cancel := context.WithTimeout(s.ctx, patient)
	defer cancel()
	var wg sync.WaitGroup
	for _, other := range s.others(m) {
		for range senders {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = s.to(other).Revoke(ctx, nobody) // there is no such lease
				}
			})
		}
	}
	refused := false
	for ctx.Err() == nil && !refused {
		attempt, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		_, err := s.to(m).Revoke(attempt, nobody)
		stop()
		refused = errors.Is(err, rpctypes.ErrTooManyRequests)
	}
	cancel()
	wg.Wait()
	return refused
}
