package mix

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
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

const (
	slowCommit = 250 * time.Millisecond
	lostCommit = time.Second // gives a commit up: one that a fault has lost must not excuse what comes after the fault
	nobody     = clientv3.LeaseID(1)
)

// pulse makes each member commit no-ops all the time, for a plain client that no fault is aimed at. A cluster that
// commits slowly serves all clients late, whatever the library does, so the history records a slow commit as a fault.
type pulse struct {
	tape *tape
	stop context.CancelFunc
	wg   sync.WaitGroup
	last atomic.Int64 // when the last slow commit ended
}

// startPulse starts a pulse, which must end before its round: a history has each fault from its beginning to its end.
func (r *run) startPulse(ctx context.Context) *pulse {
	ctx, stop := context.WithCancel(ctx)
	p := &pulse{tape: r.tape, stop: stop}
	p.last.Store(math.MinInt64)
	for _, member := range r.members {
		p.wg.Go(func() {
			for ctx.Err() == nil {
				p.beat(ctx, member)
				sleep(ctx, slowCommit/2)
			}
		})
	}
	return p
}

func (p *pulse) end() {
	p.stop()
	p.wg.Wait()
}

func (p *pulse) beat(ctx context.Context, member *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, lostCommit)
	defer cancel()
	sent := p.tape.Now()
	_, _ = member.Revoke(ctx, nobody) // there is no such lease
	if now := p.tape.Now(); now-sent >= slowCommit {
		p.tape.fault(sent, history.Event{Name: history.SlowCluster, Target: "cluster"})
		p.last.Store(int64(now)) // roughly the last of all members
	}
}

// wasSlow reports whether a slow commit has ended after since.
func (p *pulse) wasSlow(since time.Duration) bool { return p.last.Load() >= int64(since) }

// heartbeat records when this process did not run for a while. The checkers need that, since the library is not to
// blame for an event that is late then.
func (r *run) heartbeat(ctx context.Context) {
	const beat, noted = 50 * time.Millisecond, 250 * time.Millisecond
	for last := time.Now(); ctx.Err() == nil; {
		sleep(ctx, beat)
		now := time.Now()
		if gap := now.Sub(last); gap > noted {
			r.tape.Record(history.Event{Kind: history.Note, Name: history.NoteStall, Value: gap.String()})
		}
		last = now
	}
}

// keyWatch records every change of the key space, from the first revision on. The checkers find it if it misses any.
type keyWatch struct {
	etcd *clientv3.Client
	tape *tape

	mu   sync.Mutex               // guards the fields below
	seen int64                    // the revision up to which all changes are recorded
	keys map[string]history.Event // existing keys that have leases
}

// run watches until ctx ends. A watch that breaks is resumed without a gap, since the mix compacts only what the watch
// has seen.
func (k *keyWatch) run(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		for resp := range k.etcd.Watch(watching, "\x00", clientv3.WithFromKey(), clientv3.WithRev(k.revision()+1)) {
			for _, e := range resp.Events {
				k.event(e)
			}
			if n := len(resp.Events); n > 0 { // a response has all changes of a revision
				k.mu.Lock()
				k.seen = resp.Events[n-1].Kv.ModRevision
				k.mu.Unlock()
			}
			if resp.Err() != nil {
				break
			}
		}
		cancel()
		sleep(ctx, 20*time.Millisecond)
	}
}

func (k *keyWatch) event(e *clientv3.Event) {
	event := history.Event{Kind: history.Put, Key: string(e.Kv.Key), Revision: e.Kv.ModRevision}
	if e.Type == mvccpb.Event_DELETE {
		event.Kind = history.Delete
	} else {
		event.Created, event.Lease = e.Kv.CreateRevision, e.Kv.Lease
	}
	k.tape.Record(event)
	k.mu.Lock()
	defer k.mu.Unlock()
	if event.Lease != 0 {
		k.keys[event.Key] = event
	} else {
		delete(k.keys, event.Key)
	}
}

func (k *keyWatch) live() map[int64]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	live := map[int64]bool{}
	for _, e := range k.keys {
		live[e.Lease] = true
	}
	return live
}

func (k *keyWatch) created(revision int64) (keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, e := range k.keys {
		if e.Created == revision {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys) // so that a seed picks the same key
	return keys
}

func (k *keyWatch) revision() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// catchUp waits until all present changes of the cluster are recorded.
func (k *keyWatch) catchUp(ctx context.Context) error {
	rev, err := presentRevision(ctx, k.etcd)
	if err != nil {
		return err
	}
	return insist(ctx, func(context.Context) error {
		if seen := k.revision(); seen < rev {
			return fmt.Errorf("mix: the watch is at revision %d, the cluster at %d", seen, rev)
		}
		return nil
	})
}

func presentRevision(ctx context.Context, etcd *clientv3.Client) (rev int64, err error) {
	err = insist(ctx, func(ctx context.Context) error {
		resp, err := etcd.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		if err == nil {
			rev = resp.Header.Revision
		}
		return err
	})
	return rev, err
}
