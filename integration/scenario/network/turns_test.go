package network_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// bustle is a name that changes hands all the time between sessions, most of them on lines that are disturbed.
type bustle struct {
	way      rig.Way
	name     string
	direct   *clientv3.Client
	lines    []*rig.Line
	sessions []*lease.Session
	ids      []clientv3.LeaseID
	fenced   rig.Resource
	witness  rig.Witness

	turns []*atomic.Int64 // of each who takes them
	wg    sync.WaitGroup
}

func newBustle(t *testing.T, cluster *etcdtest.Cluster, way rig.Way, ttl time.Duration) *bustle {
	t.Helper()
	const disturbed = 3
	b := &bustle{
		way: way, name: way.Name, direct: cluster.Members[0].Client(t),
		fenced: rig.Resource{Key: "fenced " + way.Name, Fenced: true},
	}
	t.Cleanup(b.wg.Wait) // after their contexts have ended
	clients := []*clientv3.Client{b.direct}
	for range disturbed {
		line := rig.NewLine(t, cluster.Endpoints())
		b.lines = append(b.lines, line)
		clients = append(clients, line.Client)
	}
	for _, client := range clients {
		s := rig.NewSession(t, client, lease.Options{TTL: ttl})
		b.sessions = append(b.sessions, s)
		b.ids = append(b.ids, s.Status().LeaseID)
	}
	for i, client := range clients {
		for range 2 {
			ctx, turns := rig.Bounded(t), new(atomic.Int64)
			b.turns = append(b.turns, turns)
			b.wg.Go(func() { b.takeTurns(ctx, t, b.sessions[i], client, turns) })
		}
	}
	return b
}

// takeTurns takes the name again and again, until the session is closed.
func (b *bustle) takeTurns(ctx context.Context, t *testing.T, s *lease.Session, client *clientv3.Client, turns *atomic.Int64) {
	t.Helper()
	for {
		h, err := b.way.Take(ctx, s, b.name)
		if errors.Is(err, lease.ErrClosed) {
			return
		}
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("not granted: %v", err)
			}
			return
		}
		b.witness.Follow(h)
		// The write may fail, for it is sent once; but a holder is not fenced.
		err = errors.Join(b.fenced.Claim(ctx, client, h.Token()), b.fenced.Write(ctx, client, h.Token()))
		assert.False(t, errors.Is(err, fence.ErrStale) && h.Err() == nil, "the holder is fenced: %v", err)
		if err = h.Free(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, lease.ErrClosed) {
			t.Errorf("not freed: %v", err)
		}
		turns.Add(1)
	}
}

// everybody waits until everybody has had another turn.
func (b *bustle) everybody(t *testing.T) {
	t.Helper()
	for i, turns := range b.turns {
		from := turns.Load()
		rig.Eventually(t, func() bool { return turns.Load() > from },
			func() string { return fmt.Sprintf("waiter %d of %s is not served", i, b.name) })
	}
}

// disturbance is what lines go through that is no reason to lose a lease. It does one thing each time that it is called.
type disturbance func(n int, line *rig.Line)

// disturb disturbs lines while the name changes hands. Nobody loses anything by that; and once it is over everyone who
// waits is served soon.
func disturb(t *testing.T, ttl, pause time.Duration, d disturbance) {
	t.Helper()
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			rig.Label(t)
			cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
			b := newBustle(t, cluster, way, ttl)
			for begin, n := time.Now(), 0; time.Since(begin) < 2*ttl; n++ {
				for _, line := range b.lines {
					d(n, line)
				}
				time.Sleep(pause) // between two disturbances, some of which last
			}
			healed := time.Now()
			for _, line := range b.lines {
				line.Heal()
			}
			b.everybody(t)
			require.WithinRange(t, time.Now(), healed, healed.Add(rig.ServedWithin(ttl)))
			for i, s := range b.sessions {
				require.Equal(t, b.ids[i], s.Status().LeaseID, "the session of line %d has lost its lease", i)
			}
			rig.CloseAll(t, b.direct, b.sessions, b.name)
			b.wg.Wait()
			b.witness.Check(t, len(b.sessions))
			require.Zero(t, b.fenced.Regressions(t, b.direct), "a lower token was accepted: %v", b.fenced.History(t, b.direct))
		})
	}
}

// The lines are slow and fast by turns. A renewal on a slow line is answered later than the next attempt is sent, and counts:
// one that is slow all the time would lose its lease otherwise.
func TestNetwork_slowAndFastAlternating(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	disturb(t, ttl, 6*ttl/5, func(n int, line *rig.Line) {
		delay := time.Duration(0)
		if n%2 == 0 {
			delay = ttl / 16 // each way, and longer than an attempt is waited for before there is another
		}
		line.Each(func(p *faults.Proxy) {
			p.Requests.Delay(delay)
			p.Answers.Delay(delay)
		})
	})
}

// All connections are reset, again and again, with whatever is on its way on them.
func TestNetwork_resets(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	disturb(t, ttl, ttl/20, func(_ int, line *rig.Line) { line.Each((*faults.Proxy).Cut) })
}
