package mix

import (
	"context"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

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
