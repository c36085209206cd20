package election_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// process is a session with its own client, and so its own network. All processes of a test are in one bubble.
type process struct {
	srv *fakeetcd.Server
	c   *fakeetcd.Client
	s   *lease.Session
}

func newServer(t *testing.T) *fakeetcd.Server {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv
}

func newProcess(t *testing.T, srv *fakeetcd.Server, opts lease.Options) *process {
	t.Helper()
	p := &process{srv: srv, c: srv.NewClient(t.Context())}
	s, err := lease.NewSession(t.Context(), p.c.Client, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) }) // a lease that it cannot revoke expires
	p.s = s
	return p
}

// join is another process on p's server.
func (p *process) join(t *testing.T) *process {
	t.Helper()
	return newProcess(t, p.srv, lease.Options{})
}

// leads makes the process lead, which must be possible at once.
func (p *process) leads(t *testing.T, opts election.Options) *election.Leadership {
	t.Helper()
	c := p.campaign(t.Context(), opts)
	synctest.Wait()
	return c.won(t)
}

// candidate is a campaign under way.
type candidate struct {
	*action
	l *election.Leadership
}

// campaign begins a campaign.
func (p *process) campaign(ctx context.Context, opts election.Options) *candidate {
	c := new(candidate)
	c.action = inBackground(func() (err error) {
		c.l, err = election.Campaign(ctx, p.s, "x", opts)
		return err
	})
	return c
}

// waits begins a campaign behind all others, and returns when its key is watched.
func (p *process) waits(t *testing.T, opts election.Options) *candidate {
	t.Helper()
	c := p.campaign(t.Context(), opts)
	time.Sleep(time.Second)
	c.requireWaiting(t)
	return c
}

// won returns the leadership of a campaign that must be won by now.
func (c *candidate) won(t *testing.T) *election.Leadership {
	t.Helper()
	synctest.Wait()
	require.False(t, c.waiting(), "the candidate still waits")
	require.NoError(t, c.err)
	require.NoError(t, c.l.Err())
	return c.l
}

// requireOrder checks that after last has resigned each of the candidates leads in turn, with growing tokens.
func requireOrder(t *testing.T, last *election.Leadership, order ...*candidate) {
	t.Helper()
	time.Sleep(time.Second) // until candidates that were passed have entered again
	tokens := []fence.Token{last.Token()}
	for i, c := range order {
		require.NoError(t, last.Resign(t.Context()))
		last = c.won(t)
		require.Greater(t, last.Token(), tokens[i])
		tokens = append(tokens, last.Token())
		for _, later := range order[i+1:] {
			later.requireWaiting(t)
		}
	}
	require.NoError(t, last.Resign(t.Context()))
}

// Tests run in bubbles, so a goroutine that a test leaves behind makes it fail.
func TestMain(m *testing.M) {
	// The host's boot clock also runs while a bubble's clock stands still, so deadlines would be early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}

// bubble runs a test in its own bubble, with a process.
func bubble(t *testing.T, test func(*testing.T, *process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newProcess(t, newServer(t), lease.Options{})) })
}

// bubbleOf is bubble for a sub-test.
func bubbleOf(t *testing.T, name string, test func(*testing.T, *process)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// inBubble runs a sub-test in its own bubble.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// With the default options the deadline is 29 s after the send, and the first attempt of a request takes at most 5 s.
const (
	untilLost = 29 * time.Second
	attempt   = 5 * time.Second
)

var errEnough = errors.New("enough")

// shape counts what a transaction does if its comparisons hold. A leader that hands over deletes by nested
// transactions.
func shape(call fakeetcd.Call) (puts, deletes, touches int) {
	r, ok := call.Request.(*pb.TxnRequest)
	if !ok {
		return 0, 0, 0
	}
	for _, op := range r.Success {
		switch {
		case op.GetRequestPut().GetIgnoreValue():
			touches++
		case op.GetRequestPut() != nil:
			puts++
		case op.GetRequestDeleteRange() != nil, op.GetRequestTxn() != nil && len(r.Compare) == 3:
			deletes++
		}
	}
	return puts, deletes, touches
}

// The kinds of transactions of a candidate that does one thing at a time.

func writes(call fakeetcd.Call) bool { p, d, _ := shape(call); return p == 1 && d == 0 } // enters or proclaims
func leaves(call fakeetcd.Call) bool { p, d, _ := shape(call); return p == 0 && d > 0 }  // resigns or transfers
func asks(call fakeetcd.Call) bool   { _, _, n := shape(call); return n > 0 }

func timeout(t *testing.T, d time.Duration, cause error) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, cause)
	t.Cleanup(cancel)
	return ctx
}

// requireLost checks that err is a loss for the given reason, and matches no other outcome.
func requireLost(t *testing.T, err error, reason lease.Reason) {
	t.Helper()
	require.ErrorIs(t, err, lease.ErrLost)
	var lost *lease.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, reason.String(), lost.Reason.String())
	require.NotErrorIs(t, err, election.ErrResigned)
	require.Equal(t, reason == lease.ReasonSessionClosed, errors.Is(err, lease.ErrClosed))
}

// await waits for done, for a day at most: renewals keep a bubble's clock going, so a bubble never reports a deadlock.
func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(24 * time.Hour):
		require.FailNow(t, "nothing has happened for a day")
	}
}

// failed waits until a campaign has failed, and returns its error.
func (c *candidate) failed(t *testing.T) error {
	t.Helper()
	err := c.result(t)
	require.Error(t, err)
	require.Nil(t, c.l)
	return err
}

// wins waits until a campaign is won, and returns its leadership.
func (c *candidate) wins(t *testing.T) *election.Leadership {
	t.Helper()
	require.NoError(t, c.result(t))
	return c.l
}

// action is a call that runs in its own goroutine.
type action struct {
	err  error
	took time.Duration
	done chan struct{}
}

func inBackground(call func() error) *action {
	a := &action{done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(a.done)
		a.err = call()
		a.took = time.Since(began)
	}()
	return a
}

func (a *action) result(t *testing.T) error {
	t.Helper()
	await(t, a.done)
	return a.err
}

func (a *action) waiting() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

func (a *action) requireWaiting(t *testing.T) {
	t.Helper()
	synctest.Wait()
	require.True(t, a.waiting(), "the call has returned")
}

// key returns the key with the given value, "" if there is none.
func key(srv *fakeetcd.Server, value string) string {
	for _, kv := range srv.Keys("x/") {
		if string(kv.Value) == value {
			return string(kv.Key)
		}
	}
	return ""
}

// values returns the values of the candidates, in their order.
func values(srv *fakeetcd.Server) []string {
	kvs := srv.Keys("x/")
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return int(a.CreateRevision - b.CreateRevision) })
	var list []string
	for _, kv := range kvs {
		list = append(list, string(kv.Value))
	}
	return list
}

// reign is the time for which one key was the first in the queue.
type reign struct {
	value string // the key's last value
	token int64
}

// reigns returns the reigns in the server's history, in their order.
func reigns(srv *fakeetcd.Server) []reign {
	var list []reign
	keys := make(map[string]*mvccpb.KeyValue)
	history := srv.History("x/")
	for i, c := range history {
		if c.Put {
			keys[string(c.Kv.Key)] = c.Kv
		} else {
			delete(keys, string(c.Kv.Key))
		}
		if i+1 < len(history) && history[i+1].Rev == c.Rev {
			continue // all changes of one revision happen at once
		}
		var first *mvccpb.KeyValue
		for _, kv := range keys {
			if queue.Contends("x/", kv) && (first == nil || kv.CreateRevision < first.CreateRevision) {
				first = kv
			}
		}
		switch n := len(list); {
		case first == nil:
		case n == 0 || list[n-1].token != first.CreateRevision:
			list = append(list, reign{string(first.Value), first.CreateRevision})
		default:
			list[n-1].value = string(first.Value)
		}
	}
	return list
}

// requireReigns checks the order of the leaders, by their last values, and that tokens grew.
func requireReigns(t *testing.T, srv *fakeetcd.Server, want ...string) {
	t.Helper()
	var got []string
	token := int64(0)
	for _, r := range reigns(srv) {
		require.Greater(t, r.token, token)
		token = r.token
		got = append(got, r.value)
	}
	require.Equal(t, want, got)
}

func put(t *testing.T, c *fakeetcd.Client, key, value string, id clientv3.LeaseID) {
	t.Helper()
	_, err := c.Put(t.Context(), key, value, clientv3.WithLease(id))
	require.NoError(t, err)
}

// putOnAnotherLease writes a key as etcd's own ResumeElection and Proclaim do on another lease.
func (p *process) putOnAnotherLease(key string) {
	granted, err := p.c.Grant(p.c.Ctx(), 2)
	if err == nil {
		_, err = p.c.Put(p.c.Ctx(), key, "theirs", clientv3.WithLease(granted.ID))
	}
	if err != nil {
		panic(err)
	}
}
