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

	mu     sync.Mutex // guards the fields below
	term   uint64
	leader uint64
	counts map[string]int // by endpoint: what expired has returned last
}

// run asks periodically until ctx ends. What a member counts between the last question and a kill is lost, so the sums
// are lower bounds.
func (m *monitor) run(ctx context.Context, endpoints []string) {
	for ctx.Err() == nil {
		var wg sync.WaitGroup
		for _, e := range endpoints {
			wg.Go(func() {
				m.askLeader(ctx, e)
				m.expired(ctx, e)
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

// expired returns how many leases a member has expired as the leader since it was started, and reports the new ones. If
// the member does not answer, the number is that of its last answer.
func (m *monitor) expired(ctx context.Context, endpoint string) (n int) {
	all, err := etcdproc.Metrics(ctx, &m.http, "https://"+endpoint)
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.counts[endpoint]
	if err != nil {
		return before
	}
	n = int(all["etcd_debugging_server_lease_expired_total"])
	if n < before { // it was restarted
		before = 0
	}
	m.report.count(expiries, n-before)
	m.counts[endpoint] = n
	return n
}
