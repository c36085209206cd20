package mix

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
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
