package mix

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// storageFaults are what an operator's maintenance jobs do, and a member that runs out of space.
func storageFaults() []kind {
	return []kind{{history.Compaction, compact}, {"defragmentation", onMember(defragment)}, {"no space", noSpace}}
}

// compact discards the revisions that the key watch has seen. Watches of clients that were broken may miss some of
// them.
func compact(s *strike) bool {
	rev := s.watch.revision()
	if rev <= s.compacted {
		return false
	}
	s.begin("all members")
	return s.asks(func(ctx context.Context) error {
		_, err := s.etcd.Compact(ctx, rev)
		if err == nil {
			s.compacted = rev
		}
		return err
	})
}

func defragment(s *strike, m *etcdproc.Process) bool {
	return s.asks(func(ctx context.Context) error {
		_, err := s.etcd.Defragment(ctx, m.Endpoint())
		return err
	})
}

// noSpace raises the alarm that a member raises when its quota is used up. The members then refuse every write that
// adds to the store.
func noSpace(s *strike) bool {
	s.begin("all members")
	m := pick(s.rng, s.cluster.Members)
	id, _ := s.status(m)
	if id == 0 {
		return false
	}
	alarm := &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: etcdserverpb.AlarmType_NOSPACE,
	}
	return s.meanwhile(
		func(ctx context.Context) error {
			_, err := etcdserverpb.NewMaintenanceClient(s.etcd.ActiveConnection()).Alarm(ctx, alarm)
			return err
		},
		func(ctx context.Context) error {
			_, err := s.etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: alarm.MemberID, Alarm: alarm.Alarm})
			return err
		}, func() { s.last(200, 1500) })
}
