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

// call is a request that a session makes in its life.
type call struct {
	name    string
	method  string
	match   func(message any) bool
	way     string // only in this way to hold a name; "" means each
	loud    bool   // no silent loss: TCP does not swallow one answer of a stream and deliver the next
	renewal bool
}

var calls = []call{
	{name: "grant", method: faults.LeaseGrant},
	{name: "acquire", method: faults.Txn, match: func(m any) bool { o := opsOf(m); return o.put && !o.del }},
	{name: "read", method: faults.Txn, match: func(m any) bool { return opsOf(m) == ops{get: true} }},
	{name: "watch", method: faults.Watch, loud: true},
	{name: "renew", method: faults.LeaseKeepAlive, renewal: true},
	{name: "release", method: faults.Txn, match: func(m any) bool { return opsOf(m) == ops{del: true} }},
	{name: "hand over", method: faults.Txn, way: "lock", match: func(m any) bool { o := opsOf(m); return o.put && o.del }},
	{name: "revoke", method: faults.LeaseRevoke},
}

// losses are what a caller gets instead of an answer, for each way to hold a name. Not all combinations are here: the
// ways make the same calls, and tests in fake time have them all. "cancelled" is what a gRPC proxy that shuts down
// answers.
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

// life is the life of a session that loses one answer.
type life struct {
	way    rig.Way
	call   call
	name   string
	ttl    time.Duration
	direct *clientv3.Client // of one member, without faults
	client *clientv3.Client // the session's
	lost   *faults.Injection

	sessions []*lease.Session
	ours     *lease.Session
	before   *rig.Hold
	waiters  []*turn
	witness  rig.Witness
}

// turn is one acquisition of the name and its release.
type turn struct {
	at   time.Time // of the grant
	err  error
	done chan struct{} // closed at the end
}

// The server executes a request and its answer is lost: once for each call that a session makes, from the grant of its
// lease to the revocation. No caller gets an error, no waiter is blocked by an orphaned key, no request takes effect
// twice, and nothing is left.
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
				if loss.Silent && c.loud || c.way != "" && c.way != way.Name {
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
		// A later acquisition waits for nothing: a key that a lost answer had left would block it.
		rig.AwaitQueue(t, direct, l.name, 0)
		id := l.ours.Status().LeaseID
		last := l.goTurn(rig.Bounded(t), l.ours)
		rig.Await(t, last.done, "a later acquisition was not served: "+l.name)
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

// begin makes a rival hold the name, starts two waiters of the session, and then another of the rival's.
func (l *life) begin(t *testing.T) {
	t.Helper()
	rival := l.session(t, l.direct)
	l.before = l.way.MustTake(t, rival, l.name)
	l.witness.Follow(l.before)

	l.ours = l.session(t, l.client)
	l.waiters = append(l.waiters, l.goTurn(rig.Bounded(t), l.ours), l.goTurn(rig.Bounded(t), l.ours))
	stand := 2 // the holder and the session's first waiter
	if l.way.Name == "election" {
		stand++ // each candidate has a key of its own
	}
	rig.AwaitQueue(t, l.direct, l.name, stand)
	l.waiters = append(l.waiters, l.goTurn(rig.Bounded(t), rival))
	if l.way.Name == "election" {
		rig.AwaitQueue(t, l.direct, l.name, stand+1)
	}
}

// goTurn starts to wait for a turn. If it loses its key while it waits, it starts again, as any caller would.
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
