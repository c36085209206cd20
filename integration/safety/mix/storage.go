package mix

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// storageFaults are what an operator's cron jobs do.
func storageFaults() []kind {
	return []kind{{history.Compaction, compact}, {"defragmentation", onMember(defragment)}, {"no space", noSpace}}
}

// compact discards what the watch has seen, and with it what the clients' watches may have missed.
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

// noSpace raises the alarm that a member raises whose quota is used up: whatever adds to the store is refused.
func noSpace(s *strike) bool {
	s.begin("all members")
	m := pick(s.rng, s.cluster.Members)
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	status, err := s.etcd.Status(ctx, m.Endpoint())
	if err != nil {
		return false
	}
	alarm := &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE,
	}
	_, err = etcdserverpb.NewMaintenanceClient(s.etcd.ActiveConnection()).Alarm(ctx, alarm)
	if err == nil {
		s.last(200, 1500)
	}
	s.undo(err, func(ctx context.Context) error {
		_, err := s.etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: alarm.MemberID, Alarm: alarm.Alarm})
		return err
	})
	return err == nil
}
