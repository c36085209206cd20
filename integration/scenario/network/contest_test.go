package network_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// contest is about one name: a first holder on a line that will be cut, two waiters whose network is sound, and one more
// behind them whose line is the first's.
type contest struct {
	way    rig.Way
	name   string
	ttl    time.Duration
	fault  string
	cut    func(*faults.Proxy)
	phase  float64 // of the cut within the time between two renewals, 0 to 1
	line   *rig.Line
	direct *clientv3.Client // of one member, with nothing between

	sessions []*lease.Session // the first's, those of the waiters
	first    *rig.Hold
	waiters  []*turn

	witness       rig.Witness
	fenced, plain rig.Resource
	late          map[rig.Resource]chan error // the first's writes since it was cut off
}

// newContest connects the first.
func newContest(t *testing.T, cluster *etcdtest.Cluster, way rig.Way, name string, ttl time.Duration) *contest {
	t.Helper()
	return &contest{
		way: way, name: name, ttl: ttl,
		line:   rig.NewLine(t, cluster.Endpoints()),
		direct: cluster.Members[0].Client(t),
		fenced: rig.Resource{Key: "fenced " + name, Fenced: true},
		plain:  rig.Resource{Key: "plain " + name},
		late:   make(map[rig.Resource]chan error),
	}
}

// stand has the first hold the name and the others stand in the queue.
func (c *contest) stand(t *testing.T) {
	t.Helper()
	first := c.session(t, c.line.Client, c.ttl)
	h, err := c.way.Take(rig.Bounded(t), first, c.name)
	require.NoError(t, err)
	c.first = h
	c.witness.Follow(h)
	for n, client := range []*clientv3.Client{c.direct, c.direct, c.line.Client} {
		var ttl time.Duration // the default, where nothing is disturbed
		if client == c.line.Client {
			ttl = c.ttl
		}
		c.waiters = append(c.waiters, c.goTurn(rig.Bounded(t), c.session(t, client, ttl), client))
		rig.AwaitQueue(t, c.direct, c.name, n+2)
	}
}

func (c *contest) session(t *testing.T, client *clientv3.Client, ttl time.Duration) *lease.Session {
	t.Helper()
	s := rig.NewSession(t, client, lease.Options{TTL: ttl})
	c.sessions = append(c.sessions, s)
	return s
}

// work is the first's tenure at both resources, while the line is sound.
func (c *contest) work(t *testing.T) {
	t.Helper()
	for _, r := range []rig.Resource{c.fenced, c.plain} {
		require.NoError(t, r.Work(rig.Bounded(t), c.line.Client, c.first.Token()))
	}
}

// writeLate has the first write to both resources once more, now that it is cut off: what a process sends that was paused
// right after it had looked whether it is the holder.
func (c *contest) writeLate(ctx context.Context) {
	for _, r := range []rig.Resource{c.fenced, c.plain} {
		ended := make(chan error, 1)
		c.late[r] = ended
		go func() { ended <- r.Write(ctx, c.line.Client, c.first.Token()) }()
	}
}

// turn is one time that somebody holds the name.
type turn struct {
	token fence.Token
	at    time.Time // when it was granted
	err   error
	done  chan struct{} // closed when it is over
}

// goTurn begins to wait for a turn. Who loses its place while it waits begins again, as any caller would.
func (c *contest) goTurn(ctx context.Context, s *lease.Session, client *clientv3.Client) *turn {
	tn := &turn{done: make(chan struct{})}
	go func() {
		defer close(tn.done)
		h, err := c.way.Take(ctx, s, c.name)
		for errors.Is(err, lease.ErrLost) {
			h, err = c.way.Take(ctx, s, c.name)
		}
		if tn.err = err; err != nil {
			return
		}
		tn.at = time.Now()
		c.witness.Follow(h)
		tn.token = h.Token()
		tn.err = errors.Join(c.fenced.Work(ctx, client, tn.token), c.plain.Work(ctx, client, tn.token), h.Free(ctx))
	}()
	return tn
}

// requireServed waits for the end of a turn.
func requireServed(t *testing.T, tn *turn) {
	t.Helper()
	rig.Await(t, tn.done, "a waiter was not served")
	require.NoError(t, tn.err)
}

// finish closes everything and looks at what the witnesses know.
func finish(t *testing.T, contests []*contest) {
	t.Helper()
	var sessions []*lease.Session
	var names []string
	for _, c := range contests {
		sessions = append(sessions, c.sessions...)
		names = append(names, c.name)
	}
	rig.CloseAll(t, contests[0].direct, sessions, names...)
	for _, c := range contests {
		c.witness.Check(t, 2)
		require.Zero(t, c.fenced.Regressions(t, c.direct), "a lower token was accepted: %v", c.fenced.History(t, c.direct))
	}
}
