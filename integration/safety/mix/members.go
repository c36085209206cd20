package mix

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// clusterFaults affect members, one at a time except for the loss of the quorum. The leader is moved three times as
// often as anything else happens: that is over at once, and a run has to have many changes of the leader.
func clusterFaults() []kind {
	moved := kind{"leader moved", onLeader(moveLeader)}
	return []kind{
		moved, moved, moved,
		{"leader stopped", onLeader(stopLeader)},
		{"leader isolated", onLeader(isolateLeader)},
		{"member killed", onMember(killMember)},
		{"rolling restart", rollingRestart},
		{"quorum lost", loseQuorum},
		{"slow member", onMember(slowMember)},
		{"slow disk", slowDisk},
		{"small transactions", onMember(smallTransactions)},
		{"too many requests", onMember(tooMany)},
	}
}

// onMember injects a fault at a random member.
func onMember(do func(*strike, *etcdproc.Process) bool) func(*strike) bool {
	return func(s *strike) bool {
		m := pick(s.rng, s.cluster.Members)
		s.begin(m.Endpoint())
		return do(s, m)
	}
}

// leader returns the leader, or nil if no member says that it leads.
func (s *strike) leader() *etcdproc.Process {
	for _, m := range s.cluster.Members {
		if _, leads := s.status(m); leads {
			return m
		}
	}
	return nil
}

// status returns the ID of a member, 0 if it does not answer, and whether it says that it leads.
func (s *strike) status(m *etcdproc.Process) (id uint64, leads bool) {
	s.asks(func(ctx context.Context) error {
		status, err := s.etcd.Status(ctx, m.Endpoint())
		if err == nil {
			id, leads = status.Header.MemberId, status.Leader == status.Header.MemberId
		}
		return err
	})
	return id, leads
}

// to returns a client that sends its requests to that member only.
func (s *strike) to(m *etcdproc.Process) *clientv3.Client {
	return s.members[slices.Index(s.cluster.Members, m)]
}

// others returns all members but m.
func (s *strike) others(m *etcdproc.Process) []*etcdproc.Process {
	return slices.DeleteFunc(slices.Clone(s.cluster.Members), func(o *etcdproc.Process) bool { return o == m })
}

// onLeader injects a fault at the leader, if there is one.
func onLeader(do func(*strike, *etcdproc.Process) bool) func(*strike) bool {
	return func(s *strike) bool {
		leader := s.leader()
		if leader == nil {
			return false
		}
		s.begin(leader.Endpoint())
		return do(s, leader)
	}
}

func moveLeader(s *strike, leader *etcdproc.Process) bool {
	successor, _ := s.status(pick(s.rng, s.others(leader)))
	return s.asks(func(ctx context.Context) error {
		_, err := s.to(leader).MoveLeader(ctx, successor) // only the leader serves this request
		return err
	})
}

// stopLeader pauses the leader until the others have elected another one. It wakes up and believes that it still leads.
func stopLeader(s *strike, leader *etcdproc.Process) bool {
	return paused(s, []*etcdproc.Process{leader}, 1500, 4000)
}

// isolateLeader cuts the leader off from the other members, but not from its clients.
func isolateLeader(s *strike, leader *etcdproc.Process) bool {
	hit := s.cluster.Isolate(leader) == nil
	s.last(1500, 4000)
	return s.cluster.Rejoin(leader) == nil && hit
}

func loseQuorum(s *strike) bool {
	members := slices.Clone(s.cluster.Members)
	s.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	s.begin((&etcdproc.Cluster{Members: members[:2]}).Endpoints()...)
	return paused(s, members[:2], 500, 2500)
}

func paused(s *strike, members []*etcdproc.Process, from, to int) bool {
	return s.waking(members, func() bool {
		defer s.last(from, to)
		return each(members, (*etcdproc.Process).Pause)
	}, func() bool { return each(members, (*etcdproc.Process).Resume) })
}

// each does something to all members, and reports whether it has succeeded at all of them.
func each(members []*etcdproc.Process, do func(*etcdproc.Process) error) bool {
	ok := true
	for _, m := range members {
		ok = do(m) == nil && ok
	}
	return ok
}

// slowMember pauses a member again and again, so that it runs like a member that waits for its disk.
func slowMember(s *strike, m *etcdproc.Process) bool {
	return s.waking([]*etcdproc.Process{m}, func() bool { return true }, func() bool {
		for range 8 + s.rng.IntN(10) {
			if m.Pause() != nil {
				return false
			}
			s.last(50, 250)
			if m.Resume() != nil {
				return false
			}
			s.last(10, 60)
		}
		return true
	})
}

func killMember(s *strike, m *etcdproc.Process) bool {
	if m.Kill() != nil {
		return false
	}
	s.last(100, 2000)
	return restart(s, m)
}

// restart starts a member again, also after the round or the run has ended. It complains if the member stays down.
func restart(s *strike, m *etcdproc.Process) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), time.Minute)
	defer cancel()
	err := m.Restart(ctx)
	if err != nil {
		s.round.complain("end", "a member has not started again: %v", err)
	}
	return err == nil
}

func rollingRestart(s *strike) bool {
	s.begin("all members")
	for _, m := range s.cluster.Members {
		if !restart(s, m) {
			return false
		}
		s.last(100, 500)
	}
	return true
}

// waking runs pause and then wake, in which members wake up, and looks for what they revoke then. Before etcd revokes an
// expired lease, it checks whether it was active recently (EtcdServer.ensureLeadership), and a member that has just
// woken up passes that check. So a member that has led may for a moment revoke leases that its successor has kept
// alive, and no client can keep such a lease. The checkers treat this as an operator's revocation: the next holder
// comes at once, and only the fence stops the last one.
func (s *strike) waking(members []*etcdproc.Process, pause, wake func() bool) (hit bool) {
	before := map[*etcdproc.Process]int{}
	for _, m := range members { // once it is paused, a member does not answer
		before[m] = s.monitor.expired(s.life, m.Endpoint())
	}
	hit = pause()
	live, at := s.watch.live(), s.tape.Now()
	hit = wake() && hit
	ctx, cancel := context.WithTimeout(s.life, 6*time.Second)
	defer cancel()
	sleep(ctx, 600*time.Millisecond) // by then the member knows that it does not lead
	for m, had := range before {
		early := 0
		// It counts a lease after the cluster has committed its revocation, which may be slow.
		await(ctx, time.Second, func(ctx context.Context) (bool, error) {
			early = s.monitor.expired(ctx, m.Endpoint()) - had
			return early > 0, nil
		})
		status, err := s.etcd.Status(ctx, m.Endpoint())
		if early <= 0 || err != nil || status.Leader == status.Header.MemberId {
			continue
		}
		sleep(ctx, 200*time.Millisecond) // so that leases which expired with it are gone too
		s.report.count(revokedEarly, early)
		s.excuse(ctx, live, at, m)
	}
	return hit
}

// excuse records the leases that are gone, even those that their owners have revoked in that moment.
func (s *strike) excuse(ctx context.Context, live map[int64]bool, at time.Duration, m *etcdproc.Process) {
	for id := range live {
		resp, err := s.etcd.TimeToLive(ctx, clientv3.LeaseID(id))
		if err != nil || resp.TTL > 0 {
			continue
		}
		s.tape.fault(at, history.Event{
			Name: history.OperatorRevokes, Actor: "woken leader " + m.Endpoint(), Target: strconv.FormatInt(id, 16),
		})
		delete(live, id)
	}
}

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
