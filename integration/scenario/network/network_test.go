// Package network_test has scenarios of the network between clients and etcd: it swallows messages, delays them, loses
// single answers, or cuts off one endpoint.
package network_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Are there two holders after a partition? A first client holds a lock through a proxy and is cut off. A second client,
// whose network is sound, waits for the lock. The overlap is the time from the grant to the second client until the
// first learns of its loss. leasefence has no overlap in any trial. etcd's concurrency package is the control: with the
// same server and the same faults it has one.
//
// All trials run at the same time, and the sub-tests check their results.
func TestLock_endsBeforeTheNextIsGranted(t *testing.T) {
	t.Parallel()
	const trials = 3 // of each row and TTL
	srv := etcdtest.Start(t, etcdtest.Options{})
	waiters := srv.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	started := map[string][]*trial{}
	each := func(do func(name, peer string, o outage)) {
		for _, o := range outages {
			for peer := range lockers {
				do(o.name+"/"+peer, peer, o)
			}
		}
	}
	begin := func(name, peer string, o outage) {
		n := len(started[name])
		ttl := [...]time.Duration{2 * time.Second, 5 * time.Second}[n/trials%2]
		tr := &trial{
			name: fmt.Sprintf("%s/%s/%d", name, ttl, n), ttl: ttl, outage: o, lock: lockers[peer],
			// The cuts are spread over the renewal cycle, at random within each part of it. The starts are
			// spread over a second, since the server looks for expired leases every half second.
			phase: (float64(n%trials) + random.Float64()) / trials,
			start: time.Duration(random.Float64() * float64(time.Second)),
			proxy: faults.NewProxy(t, srv.Endpoint()), in: faults.NewInterceptor(t),
			waiter: waiters, done: make(chan error, 1),
		}
		tr.client = etcdtest.NewClient(t, []string{tr.proxy.Addr()}, etcdtest.Dial(tr.in.DialOptions()...),
			func(cfg *clientv3.Config) { cfg.DialTimeout = 5 * time.Second }) // as in etcd's own examples
		started[name] = append(started[name], tr)
		go func() { tr.done <- tr.run(t) }()
	}
	each(func(name, peer string, o outage) {
		for range 2 * trials {
			begin(name, peer, o)
		}
	})
	each(func(name, peer string, o outage) {
		t.Run(name, func(t *testing.T) {
			most, longest, began := -time.Hour, 0.0, time.Now()
			for i := 0; i < len(started[name]); i++ {
				tr := started[name][i]
				require.NoError(t, rig.Await(t, tr.done, "a trial hangs"), tr.name)
				overlap := tr.learned.Sub(tr.granted)
				if tr.inTime {
					overlap = min(overlap, -1)
				}
				t.Logf("TTL %v, phase %.2f: first learned %6.3fs, second granted %6.3fs after the cut: overlap %6.3fs",
					tr.ttl, tr.phase, tr.learned.Sub(tr.cut).Seconds(), tr.granted.Sub(tr.cut).Seconds(), overlap.Seconds())
				most = max(most, overlap)
				longest = max(longest, tr.learned.Sub(tr.cut).Seconds()/tr.ttl.Seconds())
				if i+1 == len(started[name]) && peer == "concurrency" && most <= 0 && time.Since(began) < rig.Patience {
					begin(name, peer, o) // a slow machine frees the lock late, or loses it before the cut: try once more
				}
			}
			t.Logf("longest overlap %v", most)
			if peer == "concurrency" {
				require.Positive(t, most, "the outage makes no overlap: the test proves nothing")
				return
			}
			require.Negative(t, most, "two holders")
			if o.late {
				// The late answer must have moved the deadline, or this row only repeats the black hole. When the link is
				// cut, the deadline is less than 0.57 of the TTL away without that answer, and 0.9 with it.
				require.Greater(t, longest, 0.7, "the late answers did not count")
			}
		})
	})
}

// outage is a way to cut a client off.
type outage struct {
	name    string
	late    bool                                            // the answer to the last renewal is late
	prepare func(*testing.T, *trial)                        // before the session is made
	strike  func(context.Context, *testing.T, *trial) error // once the lock is held, until the link is to be cut
}

// The control's session considers its lease valid for the TTL after an answer *arrives* or, before the first answer,
// for the client's DialTimeout plus a second. It checks that once a second, and sends renewals in steps of half a
// second, both counted from its start. The server frees the lock a TTL after it has received the last renewal, give or
// take half a second. So each outage below makes an overlap in nearly every trial; its comment says why.
var outages = []outage{
	{
		// Renewals are sent a whole number of seconds after the session's start, and their answers take 100 ms. The session's
		// deadline is therefore 0.1 s after one of its checks, and the next check notices it: 1 s after the server may free
		// the lock, and at least 0.4 s after it does. The cut must not lose an answer, so it comes within a third of the TTL
		// after one.
		name:    "black hole",
		prepare: func(_ *testing.T, tr *trial) { tr.proxy.Answers.Delay(100 * time.Millisecond) },
		strike: func(ctx context.Context, _ *testing.T, tr *trial) error {
			in := tr.in
			err := in.AwaitAnswered(ctx, faults.LeaseKeepAlive, in.Answered(faults.LeaseKeepAlive)+1)
			time.Sleep(time.Duration(tr.phase * float64(tr.ttl/3)))
			return err
		},
	},
	{
		// The answer to the last renewal is 0.25 to 0.45 of the TTL late, and everything sent after the server received that
		// renewal is lost. The session's deadline is late by as much. At TTL 2 s that is 0.5 to 0.9 s after the server's, the
		// session's check notices it after 1 s, and the overlap is at least 0.4 s. At TTL 5 s it is at least 0.65 s. An
		// answer later than 0.57 of the TTL would come after leasefence's deadline.
		name:    "late answer",
		late:    true,
		prepare: func(*testing.T, *trial) {},
		strike: func(ctx context.Context, t *testing.T, tr *trial) error { //nolint:thelper // a row
			if err := tr.in.AwaitAnswered(ctx, faults.LeaseKeepAlive, 1); err != nil {
				return err
			}
			late := tr.in.Inject(t, faults.Rule{
				Fault: faults.DelayAnswer, Method: faults.LeaseKeepAlive, Times: 1,
				Delay: time.Duration((0.25 + 0.2*tr.phase) * float64(tr.ttl)),
			})
			select {
			case <-late.Hit():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	},
	{
		// No renewal ever gets through, so the session waits for 6 s and the server for the TTL. The overlap is at least
		// 0.4 s at TTL 5 s, and 3.4 s at TTL 2 s.
		name: "first renewal",
		prepare: func(t *testing.T, tr *trial) {
			t.Helper()
			tr.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
		},
		strike: func(_ context.Context, _ *testing.T, tr *trial) error {
			time.Sleep(time.Duration(tr.phase * float64(tr.ttl/2)))
			return nil
		},
	},
}

// trial is one holder that is cut off and one waiter.
type trial struct {
	name   string
	ttl    time.Duration
	phase  float64 // of the cut, 0 to 1
	start  time.Duration
	outage outage
	lock   locker
	proxy  *faults.Proxy
	in     *faults.Interceptor
	client *clientv3.Client // through proxy and in
	waiter *clientv3.Client
	done   chan error // receives the end of run, which sets the fields below

	cut, learned, granted time.Time
	inTime                bool // the first had learned of its loss when the second was granted
}

func (tr *trial) run(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	time.Sleep(tr.start)
	tr.outage.prepare(t, tr)
	lost, err := tr.lock(ctx, t, tr.client, tr.ttl, tr.name)
	if err != nil {
		return fmt.Errorf("first: %w", err)
	}
	learned := make(chan time.Time, 1)
	go func() { // before anything that may take long on a slow machine
		<-lost
		learned <- time.Now()
	}()
	second := make(chan error, 1)
	held, free := context.WithCancel(ctx) // until the second is granted, on a slow machine perhaps before the strike
	go func() {
		_, err := tr.lock(ctx, t, tr.waiter, time.Minute, tr.name)
		tr.granted = time.Now()
		select {
		case <-lost: // the goroutine that notes the time may be late
			tr.inTime = true
		default:
		}
		free()
		second <- err
	}()
	for queued := int64(0); queued < 2 && held.Err() == nil; {
		resp, err := tr.waiter.Get(ctx, tr.name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		queued = resp.Count
		time.Sleep(10 * time.Millisecond)
	}
	if err := tr.outage.strike(held, t, tr); err != nil && held.Err() == nil {
		return err
	}
	tr.proxy.BlackHole()
	tr.cut = time.Now()
	select {
	case tr.learned = <-learned:
		err = <-second
		tr.proxy.Restore() // for the clean-up
		return err
	case <-ctx.Done():
		return fmt.Errorf("the first holder does not learn of its loss: %w", context.Cause(ctx))
	}
}

// locker takes a lock on a new session, which ends with the test. Lost is closed when the holder learns of the loss.
type locker func(
	ctx context.Context, t *testing.T, client *clientv3.Client, ttl time.Duration, name string,
) (lost <-chan struct{}, err error)

var lockers = map[string]locker{
	"leasefence": func(ctx context.Context, t *testing.T, client *clientv3.Client, ttl time.Duration, name string) (<-chan struct{}, error) { //nolint:thelper // a row
		s, err := lease.NewSession(ctx, client, lease.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = s.Close(context.WithoutCancel(ctx)) }) // fails if the lease is gone
		l, err := s.Lock(ctx, name)
		for errors.Is(err, lease.ErrLost) { // the machine has stood still for the TTL: the trial has not begun
			l, err = s.Lock(ctx, name)
		}
		if err != nil {
			return nil, err
		}
		return l.Context().Done(), nil
	},
	"concurrency": func(ctx context.Context, t *testing.T, client *clientv3.Client, ttl time.Duration, name string) (<-chan struct{}, error) { //nolint:thelper // a row
		for {
			s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = s.Close() }) // fails if the lease is gone
			err = concurrency.NewMutex(s, name).Lock(ctx)
			if !errors.Is(err, rpctypes.ErrLeaseNotFound) && !errors.Is(err, concurrency.ErrSessionExpired) { // as above
				return s.Done(), err
			}
		}
	},
}

// sickHolder is a session with a hold; its endpoints will be dead in turn.
type sickHolder struct {
	name    string
	in      *faults.Interceptor
	session *lease.Session
	id      clientv3.LeaseID
	hold    *lease.Lock
	next    <-chan *lease.Lock // receives the lock of the waiter behind it
}

// Each of three endpoints is dead for more than a TTL: it accepts connections and never answers. No session loses its
// lease or its hold, and all waiters are served while the last of them is dead.
func TestNetwork_oneOfThreeEndpointsDead(t *testing.T) {
	t.Parallel()
	const ttl, sessions = 10 * time.Second, 8 // a lease that is long enough for a busy machine
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Client(t)
	proxies, addrs := rig.NewProxies(t, cluster.Endpoints())
	var holders []*sickHolder
	for i := range sessions {
		h := &sickHolder{name: fmt.Sprint(i), in: faults.NewInterceptor(t)}
		client := etcdtest.NewClient(t, addrs, etcdtest.Dial(h.in.DialOptions()...))
		h.session = rig.NewSession(t, client, lease.Options{TTL: ttl})
		h.id = h.session.Status().LeaseID
		h.hold = rig.MustLock(t, h.session, h.name)
		holders = append(holders, h)
	}
	// Each session also waits for the next one's name, through the same proxies.
	for i, h := range holders {
		h.next = rig.Wait(t, holders[(i+1)%len(holders)].session, h.name)
	}
	for _, h := range holders {
		rig.AwaitQueue(t, direct, h.name, 2)
	}

	// gRPC chooses at random where a session renews, and each of these is dead once.
	unanswered := 0
	for i, dead := range proxies {
		if i > 0 {
			proxies[i-1].Restore()
		}
		dead.BlackHole()
		died := time.Now()
		for _, h := range holders {
			rig.Eventually(t, func() bool { // a renewal was sent a TTL later
				return h.hold.Err() != nil || h.hold.Deadline().Sub(died) > 2*ttl
			}, func() string { return "no renewal" })
			require.NoError(t, h.hold.Err())
			require.Equal(t, h.id, h.session.Status().LeaseID)
			unanswered += h.in.Sent(faults.LeaseKeepAlive) - h.in.Answered(faults.LeaseKeepAlive)
		}
	}
	require.Positive(t, unanswered, "no renewal went to a dead endpoint")

	rig.Spread(t, sessions, sessions, func(i int) error { return holders[i].hold.Unlock(rig.Bounded(t)) })
	var served []*lease.Lock
	for _, h := range holders {
		next := rig.Await(t, h.next, "a waiter was not served")
		require.Greater(t, next.Token(), h.hold.Token())
		served = append(served, next)
	}
	rig.Spread(t, sessions, sessions, func(i int) error { return served[i].Unlock(rig.Bounded(t)) })
	for _, h := range holders {
		require.Equal(t, h.id, h.session.Status().LeaseID)
	}
	proxies[2].Restore()
}

// The answer to the request for a lease is lost. The client repeats the request by itself, and the server refuses the
// ID, which the lost request has used. The session takes another one. Package fakeetcd has no connection, so it cannot
// show this.
func TestNewSession_lostGrant(t *testing.T) {
	t.Parallel()
	srv, in := etcdtest.Start(t, etcdtest.Options{}), faults.NewInterceptor(t)
	lost := in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.LeaseGrant, Times: 1})
	s, err := lease.NewSession(rig.Bounded(t), srv.Client(t, etcdtest.Dial(in.DialOptions()...)), lease.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, lost.Hits())
	require.Positive(t, in.Failed(rpctypes.ErrLeaseExist))
	require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))
	require.NoError(t, s.Close(rig.Bounded(t)))
	left, err := srv.Client(t).Leases(rig.Bounded(t))
	require.NoError(t, err)
	require.NotEmpty(t, left.Leases, "the lost one expires by itself")
	require.NotContains(t, left.Leases, clientv3.LeaseStatus{ID: s.Status().LeaseID})
}

// A client that takes only small answers: a large value that somebody has put below the name breaks the watches. They do not
// fall silent. lease.Watch does not need that value and goes on; who needs it gets an error that names the client's limit.
func TestWatch_takesOnlySmallAnswers(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	others, client := srv.Client(t), srv.Client(t, func(cfg *clientv3.Config) { cfg.MaxCallRecvMsgSize = 4 << 10 })
	s := rig.NewSession(t, others, lease.Options{})
	large := strings.Repeat("x", 8<<10)
	leader := rig.Observe(t, client, "n")
	leader.Sees(t, election.Leader{})
	next, stop := iter.Pull2(lease.Watch(rig.Bounded(t), client, "n"))
	defer stop()
	q, err, _ := next()
	require.NoError(t, err)
	require.Empty(t, q.Holders)

	_, err = others.Put(rig.Bounded(t), "n/stray", large)
	require.NoError(t, err)
	const limit = "see the client's MaxCallRecvMsgSize"
	require.ErrorContains(t, leader.AwaitEnd(t), limit)
	rig.MustLock(t, s, "n")
	q, err, _ = next()
	require.NoError(t, err)
	require.Len(t, q.Holders, 1)

	_, err = others.Put(rig.Bounded(t), fmt.Sprintf("m/%x", s.Status().LeaseID), large, clientv3.WithLease(s.Status().LeaseID))
	require.NoError(t, err)
	_, err = lease.Inspect(rig.Bounded(t), client, "m")
	require.ErrorContains(t, err, limit)
}

func TestMain(m *testing.M) { etcdtest.Main(m) }
