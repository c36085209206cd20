package mix

import (
	"context"
	"net/http"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// monitor asks the members who leads, and how many leases have expired.
type monitor struct {
	etcd   *clientv3.Client
	report *Report
	http   http.Client

	mu      sync.Mutex // guards the fields below
	term    uint64
	leader  uint64
	expired map[string]int // by endpoint: the member's own count at the last question
}

// run asks periodically until ctx ends. What a member counts between the last question and a kill is lost, so the sums
// are lower bounds.
func (m *monitor) run(ctx context.Context, endpoints []string) {
	for ctx.Err() == nil {
		var wg sync.WaitGroup
		for _, e := range endpoints {
			wg.Go(func() {
				m.askLeader(ctx, e)
				if n, ok := m.expiredAt(ctx, e); ok {
					m.report.count(expiries, m.since(e, n))
				}
			})
		}
		wg.Wait()
		sleep(ctx, 500*time.Millisecond)
	}
}

func (m *monitor) askLeader(ctx context.Context, endpoint string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, err := m.etcd.Status(ctx, endpoint)
	if err != nil || status.Leader == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if status.RaftTerm <= m.term {
		return
	}
	if m.leader != 0 && m.leader != status.Leader {
		m.report.count(leaderChanges, 1)
	}
	m.term, m.leader = status.RaftTerm, status.Leader
}

// expiredAt asks one member how many leases it has expired as the leader.
func (m *monitor) expiredAt(ctx context.Context, endpoint string) (n int, ok bool) {
	all, err := etcdproc.Metrics(ctx, &m.http, "https://"+endpoint)
	return int(all["etcd_debugging_server_lease_expired_total"]), err == nil
}

// since returns how many leases are new in a member's count. A member that was restarted counts from zero.
func (m *monitor) since(endpoint string, n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.expired[endpoint]
	if n < before {
		before = 0
	}
	m.expired[endpoint] = n
	return n - before
}

// latest returns a member's count or, if it does not answer, that at the last question.
func (m *monitor) latest(ctx context.Context, endpoint string) int {
	if n, ok := m.expiredAt(ctx, endpoint); ok {
		return n
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.expired[endpoint]
}
