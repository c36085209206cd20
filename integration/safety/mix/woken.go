package mix

import (
	"context"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// woken looks for revocations by a member that was paused while it led, and wakes up after another member was elected.
// Before etcd revokes an expired lease, it checks whether it was active recently (EtcdServer.ensureLeadership), and a
// member that has just woken up passes that check. So for a moment it may revoke leases that its successor has kept
// alive, and no client can keep such a lease. The checkers treat this as an operator's revocation: the next holder
// comes at once, and only the fence stops the last one.
type woken struct {
	*strike
	members []*etcdproc.Process
	expired map[*etcdproc.Process]int // leases that each member had expired before
	live    map[int64]bool            // leases that had keys
	at      time.Duration
}

// expectWoken is called before the members are paused.
func (s *strike) expectWoken(members []*etcdproc.Process) *woken {
	w := &woken{strike: s, members: members, expired: map[*etcdproc.Process]int{}}
	for _, m := range members {
		if n, ok := s.monitor.expiredAt(s.life, m.Endpoint()); ok {
			w.expired[m] = n
		}
	}
	return w
}

// begin is called before the members wake up.
func (w *woken) begin() { w.live, w.at = w.watch.live(), w.tape.Now() }

// end is called after they have woken up. If a member that does not lead has expired leases, it records those that are
// gone.
func (w *woken) end() {
	sleep(w.life, 600*time.Millisecond) // by then the member knows that it does not lead
	ctx, cancel := context.WithTimeout(w.life, 5*time.Second)
	defer cancel()
	for _, m := range w.members {
		before, known := w.expired[m]
		after, ok := w.expiredSince(ctx, m, before)
		if !known || !ok || after <= before {
			continue
		}
		status, err := w.etcd.Status(ctx, m.Endpoint())
		if err != nil || status.Leader == status.Header.MemberId {
			continue
		}
		w.mu.Lock()
		w.early += after - before
		w.mu.Unlock()
		w.record(ctx, m)
	}
}

// expiredSince returns how many leases a member has expired in all. It waits about a second for the number to rise above
// before: the member counts a lease after the cluster has committed its revocation, which may be slow.
func (w *woken) expiredSince(ctx context.Context, m *etcdproc.Process, before int) (n int, ok bool) {
	for range 10 {
		if n, ok = w.monitor.expiredAt(ctx, m.Endpoint()); ok && n > before {
			sleep(ctx, 200*time.Millisecond) // so that leases which expired with it are counted too
			return w.monitor.expiredAt(ctx, m.Endpoint())
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return n, ok
}

// record excuses the leases that are gone, even those that their owners have revoked in that moment.
func (w *woken) record(ctx context.Context, m *etcdproc.Process) {
	for id := range w.live {
		resp, err := w.etcd.TimeToLive(ctx, clientv3.LeaseID(id))
		if err != nil || resp.TTL > 0 {
			continue
		}
		fault := history.Event{
			At: w.at, Kind: history.Fault, Name: history.OperatorRevokes, Fault: w.tape.ID(),
			Actor: "woken leader " + m.Endpoint(), Target: strconv.FormatInt(id, 16),
		}
		w.tape.Record(fault)
		fault.At, fault.Kind = w.tape.Now(), history.Heal
		w.tape.Record(fault)
		delete(w.live, id)
	}
}

// revokedEarly returns the number of leases that woken members revoked.
func (n *nemesis) revokedEarly() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.early
}
