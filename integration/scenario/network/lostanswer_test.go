package network_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// call is one of those that a session makes in its life.
type call struct {
	name    string
	method  string
	match   func(message any) bool
	way     string // that it is made by; "" is every
	oneWay  bool   // a connection breaks, but it does not swallow one answer of a stream and deliver the next
	renewal bool
}

var calls = []call{
	{name: "grant", method: faults.LeaseGrant},
	{name: "acquire", method: faults.Txn, match: func(m any) bool { o := opsOf(m); return o.put && !o.del }},
	{name: "read", method: faults.Txn, match: func(m any) bool { return opsOf(m) == ops{get: true} }},
	{name: "watch", method: faults.Watch, oneWay: true},
	{name: "renew", method: faults.LeaseKeepAlive, renewal: true},
	{name: "release", method: faults.Txn, match: func(m any) bool { return opsOf(m) == ops{del: true} }},
	{name: "hand over", method: faults.Txn, way: "lock", match: func(m any) bool { o := opsOf(m); return o.put && o.del }},
	{name: "revoke", method: faults.LeaseRevoke},
}

// losses are what a caller gets in the place of an answer, by the way to hold a name: the calls are the same, and in fake time
// each loss meets each of them. A proxy that shuts down cancels what it has forwarded.
var losses = map[string]map[string]faults.Rule{
	"lock":     {"silent": {Silent: true}, "cancelled": {Code: codes.Canceled}},
	"election": {"broken": {}},
}

// ops is what a transaction does if its condition holds.
type ops struct{ put, get, del bool }

func opsOf(message any) (o ops) {
	txn, ok := message.(*etcdserverpb.TxnRequest)
	if !ok || txn == nil {
		return ops{}
	}
	for _, op := range txn.Success {
		inner := opsOf(op.GetRequestTxn())
		o.put = o.put || op.GetRequestPut() != nil || inner.put
		o.get = o.get || op.GetRequestRange() != nil || inner.get
		o.del = o.del || op.GetRequestDeleteRange() != nil || inner.del
	}
	return o
}

// life is that of a session which loses one answer.
type life struct {
	way    rig.Way
	call   call
	name   string
	ttl    time.Duration
	direct *clientv3.Client // of one member, with nothing between
	client *clientv3.Client // the session's
	lost   *faults.Injection

	sessions []*lease.Session
	ours     *lease.Session
	before   *rig.Hold
	waiters  []*turn
	witness  rig.Witness
}

// turn is one time that somebody holds the name.
type turn struct {
	at   time.Time // when it was granted
	err  error
	done chan struct{} // closed when it is over
}

// The server does what it is asked and the answer is lost: once for each call that a session makes, from its grant to its
// revocation. Nobody gets an error, nobody waits for a key that is nobody's, nothing is done twice, and nothing is left.
func TestNetwork_lostAnswerAtEveryCall(t *testing.T) {
	t.Parallel()
	rig.Label(t)
	const ttl = 10 * time.Second
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Members[0].Client(t)
	var lives []*life
	for _, way := range rig.Ways {
		for _, c := range calls {
			for name, loss := range losses[way.Name] {
				if loss.Silent && c.oneWay || c.way != "" && c.way != way.Name {
					continue
				}
				lives = append(lives, newLife(t, cluster, direct, way, c, name, loss, ttl))
			}
		}
	}
	for _, l := range lives {
		l.begin(t)
	}
	for _, l := range lives {
		if l.call.renewal {
			rig.Await(t, l.lost.Hit(), "no renewal is sent")
		}
	}
	begun := time.Now()
	for _, l := range lives {
		require.NoError(t, l.before.Free(rig.Bounded(t)), l.name)
	}
	for _, l := range lives {
		for _, tn := range l.waiters {
			rig.Await(t, tn.done, "a waiter was not served: "+l.name)
			require.NoError(t, tn.err, l.name)
			require.WithinRange(t, tn.at, begun, begun.Add(rig.ServedWithin(ttl)), l.name)
		}
	}
	for _, l := range lives {
		// One who comes now waits for nobody: what a lost answer might have left would be in its way.
		rig.AwaitQueue(t, direct, l.name, 0)
		id := l.ours.Status().LeaseID
		last := l.goTurn(rig.Bounded(t), l.ours)
		rig.Await(t, last.done, "one who comes later was not served: "+l.name)
		require.NoError(t, last.err, l.name)
		require.Equal(t, id, l.ours.Status().LeaseID, l.name)
	}
	var sessions []*lease.Session
	var names []string
	for _, l := range lives {
		sessions, names = append(sessions, l.sessions...), append(names, l.name)
	}
	rig.CloseAll(t, direct, sessions, names...)
	for _, l := range lives {
		l.witness.Check(t, 2)
		require.Equal(t, 1, l.lost.Hits(), "%s: the fault met no message", l.name)
	}
}

func newLife(
	t *testing.T, cluster *etcdtest.Cluster, direct *clientv3.Client, way rig.Way, c call, how string, loss faults.Rule, ttl time.Duration,
) *life {
	t.Helper()
	name := fmt.Sprintf("%s, %s, %s", way.Name, c.name, how)
	in := faults.NewInterceptor(t)
	loss.Fault, loss.Method, loss.Match, loss.Times = faults.LoseAnswer, c.method, c.match, 1
	return &life{
		way: way, call: c, name: name, ttl: ttl, direct: direct,
		client: cluster.Client(t, etcdtest.Dial(in.DialOptions()...)), lost: in.Inject(t, loss),
	}
}

func (l *life) session(t *testing.T, client *clientv3.Client) *lease.Session {
	t.Helper()
	s := rig.NewSession(t, client, lease.Options{TTL: l.ttl})
	l.sessions = append(l.sessions, s)
	return s
}

// begin has somebody hold the name, two of the session wait for it, and then somebody else.
func (l *life) begin(t *testing.T) {
	t.Helper()
	rival := l.session(t, l.direct)
	l.before = l.way.MustTake(t, rival, l.name)
	l.witness.Follow(l.before)

	l.ours = l.session(t, l.client)
	l.waiters = append(l.waiters, l.goTurn(rig.Bounded(t), l.ours), l.goTurn(rig.Bounded(t), l.ours))
	stand := 2 // the holder and the first of the session
	if l.way.Name == "election" {
		stand++ // each candidate stands for itself
	}
	rig.AwaitQueue(t, l.direct, l.name, stand)
	l.waiters = append(l.waiters, l.goTurn(rig.Bounded(t), rival))
	if l.way.Name == "election" {
		rig.AwaitQueue(t, l.direct, l.name, stand+1)
	}
}

// goTurn begins to wait for a turn. Who loses its place while it waits begins again, as any caller would.
func (l *life) goTurn(ctx context.Context, s *lease.Session) *turn {
	tn := &turn{done: make(chan struct{})}
	go func() {
		defer close(tn.done)
		h, err := l.way.Take(ctx, s, l.name)
		for errors.Is(err, lease.ErrLost) {
			h, err = l.way.Take(ctx, s, l.name)
		}
		if tn.err = err; err != nil {
			return
		}
		tn.at = time.Now()
		l.witness.Follow(h)
		tn.err = h.Free(ctx)
	}()
	return tn
}
