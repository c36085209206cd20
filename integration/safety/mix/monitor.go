package mix

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// monitor asks the members who leads, and how many leases have expired.
type monitor struct {
	etcd      *clientv3.Client
	endpoints []string
	http      http.Client

	mu      sync.Mutex // guards the fields below
	term    uint64
	leader  uint64
	changes int
	counted map[string]int // by endpoint: the member's own count at the last question
	expired int
}

func newMonitor(etcd *clientv3.Client, endpoints []string, config *tls.Config) *monitor {
	return &monitor{
		etcd: etcd, endpoints: endpoints, counted: map[string]int{},
		http: http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}},
	}
}

// run asks periodically until ctx ends. What a member counts between the last question and a kill is lost, so the sums
// are lower bounds.
func (m *monitor) run(ctx context.Context) {
	ticker := time.NewTicker(300 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		m.look(ctx, n%3 == 0)
	}
}

func (m *monitor) look(ctx context.Context, leases bool) {
	var wg sync.WaitGroup
	for _, e := range m.endpoints {
		wg.Go(func() {
			m.askLeader(ctx, e)
			if leases {
				m.askExpired(ctx, e)
			}
		})
	}
	wg.Wait()
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
		m.changes++
	}
	m.term, m.leader = status.RaftTerm, status.Leader
}

// expiredMetric is the leader's count of leases that it has expired.
const expiredMetric = "etcd_debugging_server_lease_expired_total "

func (m *monitor) askExpired(ctx context.Context, endpoint string) {
	if n, ok := m.expiredAt(ctx, endpoint); ok {
		m.count(endpoint, n)
	}
}

// expiredAt asks one member.
func (m *monitor) expiredAt(ctx context.Context, endpoint string) (n int, ok bool) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+endpoint+"/metrics", http.NoBody)
	if err != nil {
		return 0, false
	}
	resp, err := m.http.Do(r)
	if err != nil {
		return 0, false
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), expiredMetric)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(text, 64)
		return int(n), err == nil
	}
	return 0, false
}

// count adds what is new. A member that was restarted counts from zero.
func (m *monitor) count(endpoint string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n < m.counted[endpoint] {
		m.counted[endpoint] = 0
	}
	m.expired += n - m.counted[endpoint]
	m.counted[endpoint] = n
}

func (m *monitor) counts() (leaderChanges, expired int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes, m.expired
}
