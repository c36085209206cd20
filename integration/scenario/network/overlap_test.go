package network_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

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
	ctx := rig.Bounded(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	waiters := srv.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	type row struct {
		outage overlapOutage
		peer   string
		lock   overlapLocker
		trials []*overlapTrial
	}
	var rows []*row
	for _, outage := range overlapOutages {
		rows = append(rows,
			&row{outage: outage, peer: "leasefence", lock: overlapLease},
			&row{outage: outage, peer: "concurrency", lock: overlapStock})
	}
	for _, r := range rows {
		for _, ttl := range []time.Duration{2 * time.Second, 5 * time.Second} {
			for n := range trials {
				r.trials = append(r.trials, &overlapTrial{
					t:    t,
					name: fmt.Sprintf("%s/%s/%s/%d", r.outage.name, r.peer, ttl, n),
					ttl:  ttl,
					// The cuts are spread over the renewal cycle, at random within each part of it. The starts are
					// spread over a second, since the server looks for expired leases every half second.
					phase:   (float64(n) + random.Float64()) / trials,
					start:   time.Duration(random.Float64() * float64(time.Second)),
					outage:  r.outage,
					line:    newStockLine(t, srv),
					waiters: waiters,
					lock:    r.lock,
					done:    make(chan struct{}),
				})
			}
		}
	}
	for _, r := range rows {
		for _, tr := range r.trials {
			go func() {
				defer close(tr.done)
				tr.err = tr.run(ctx)
			}()
		}
	}
	for _, r := range rows {
		for _, tr := range r.trials {
			<-tr.done
		}
	}

	for _, r := range rows {
		t.Run(r.outage.name+"/"+r.peer, func(t *testing.T) {
			most, longest := -time.Hour, 0.0
			for _, tr := range r.trials {
				require.NoError(t, tr.err, tr.name)
				overlap := tr.learned.Sub(tr.granted)
				t.Logf("TTL %v, phase %.2f: first learned %6.3fs, second granted %6.3fs after the cut: overlap %6.3fs",
					tr.ttl, tr.phase, tr.learned.Sub(tr.cut).Seconds(), tr.granted.Sub(tr.cut).Seconds(), overlap.Seconds())
				most = max(most, overlap)
				longest = max(longest, tr.learned.Sub(tr.cut).Seconds()/tr.ttl.Seconds())
			}
			t.Logf("longest overlap %v", most)
			switch {
			case r.peer == "concurrency":
				require.Positive(t, most, "the outage makes no overlap: the test proves nothing")
				return
			case r.outage.late:
				// The late answer must have moved the deadline, or this row only repeats the black hole. When the link is
				// cut, the deadline is less than 0.57 of the TTL away without that answer, and 0.9 with it.
				require.Greater(t, longest, 0.7, "the late answers did not count")
			}
			for _, tr := range r.trials {
				require.Truef(t, tr.learned.Before(tr.granted), "%s: two holders for %v", tr.name, tr.learned.Sub(tr.granted))
			}
		})
	}
}

// overlapOutage is a way to cut a client off.
type overlapOutage struct {
	name    string
	late    bool                                       // the answer to the last renewal is late
	prepare func(*testing.T, *rig.Line)                // before the session is made; may be nil
	strike  func(context.Context, *overlapTrial) error // once the lock is held; returns when the link is cut
}

// The control's session considers its lease valid for the TTL after an answer *arrives* or, before the first answer,
// for the client's DialTimeout plus a second. It checks that once a second, and sends renewals in steps of half a
// second, both counted from its start. The server frees the lock a TTL after it has received the last renewal, give or
// take half a second. So each outage below makes an overlap in nearly every trial; its comment says why.
var overlapOutages = []overlapOutage{
	{
		// Renewals are sent a whole number of seconds after the session's start, and their answers take 100 ms. The session's
		// deadline is therefore 0.1 s after one of its checks, and the next check notices it: 1 s after the server may free
		// the lock, and at least 0.4 s after it does. The cut must not lose an answer, so it comes within a third of the TTL
		// after one.
		name:    "black hole",
		prepare: func(_ *testing.T, l *rig.Line) { l.Proxies[0].Answers.Delay(100 * time.Millisecond) },
		strike: func(ctx context.Context, tr *overlapTrial) error {
			in := tr.line.In
			if err := in.AwaitAnswered(ctx, faults.LeaseKeepAlive, in.Answered(faults.LeaseKeepAlive)+1); err != nil {
				return err
			}
			return tr.cutAfter(ctx, time.Duration(tr.phase*float64(tr.ttl/3)))
		},
	},
	{
		// The answer to the last renewal is 0.25 to 0.45 of the TTL late, and everything sent after the server received that
		// renewal is lost. The session's deadline is late by as much. At TTL 2 s that is 0.5 to 0.9 s after the server's, the
		// session's check notices it after 1 s, and the overlap is at least 0.4 s. At TTL 5 s it is at least 0.65 s. An
		// answer later than 0.57 of the TTL would come after leasefence's deadline.
		name: "late answer",
		late: true,
		strike: func(ctx context.Context, tr *overlapTrial) error {
			in := tr.line.In
			if err := in.AwaitAnswered(ctx, faults.LeaseKeepAlive, 1); err != nil {
				return err
			}
			late := in.Inject(tr.t, faults.Rule{
				Fault: faults.DelayAnswer, Method: faults.LeaseKeepAlive, Times: 1,
				Delay: time.Duration((0.25 + 0.2*tr.phase) * float64(tr.ttl)),
			})
			select {
			case <-late.Hit():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return tr.cutAfter(ctx, 0)
		},
	},
	{
		// No renewal ever gets through, so the session waits for 6 s and the server for the TTL. The overlap is at least
		// 0.4 s at TTL 5 s, and 3.4 s at TTL 2 s.
		name: "first renewal",
		prepare: func(t *testing.T, l *rig.Line) {
			t.Helper()
			l.In.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
		},
		strike: func(ctx context.Context, tr *overlapTrial) error {
			return tr.cutAfter(ctx, time.Duration(tr.phase*float64(tr.ttl/2)))
		},
	},
}

// newStockLine returns the first client and its network. The DialTimeout is that of etcd's own examples.
func newStockLine(tb testing.TB, srv *etcdtest.Server) *rig.Line {
	tb.Helper()
	return rig.NewLine(tb, []string{srv.Endpoint()}, func(cfg *clientv3.Config) { cfg.DialTimeout = 5 * time.Second })
}

// overlapTrial is one holder that is cut off and one waiter.
type overlapTrial struct {
	t       *testing.T
	name    string
	ttl     time.Duration
	phase   float64 // of the cut, 0 to 1
	start   time.Duration
	outage  overlapOutage
	line    *rig.Line
	waiters *clientv3.Client
	lock    overlapLocker
	done    chan struct{} // closed when the fields below are set

	cut, learned, granted time.Time
	err                   error
}

func (tr *overlapTrial) run(ctx context.Context) error {
	if err := overlapPause(ctx, tr.start); err != nil {
		return err
	}
	if tr.outage.prepare != nil {
		tr.outage.prepare(tr.t, tr.line)
	}
	lost, release, err := tr.lock(ctx, tr.line.Client, tr.ttl, tr.name)
	if err != nil {
		return fmt.Errorf("first: %w", err)
	}
	learned := make(chan time.Time, 1)
	go func() {
		<-lost
		learned <- time.Now()
	}()

	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	second := make(chan error, 1)
	releaseSecond := func() {}
	go func() {
		_, release, err := tr.lock(waiting, tr.waiters, time.Minute, tr.name)
		tr.granted = time.Now()
		if err == nil {
			releaseSecond = release
		}
		second <- err
	}()

	err = tr.awaitQueue(ctx)
	if err == nil {
		err = tr.outage.strike(ctx, tr)
	}
	if err == nil {
		select {
		case tr.learned = <-learned:
		case <-ctx.Done():
			err = fmt.Errorf("the first holder does not learn of its loss: %w", context.Cause(ctx))
		}
	}
	if err != nil {
		giveUp()
	}
	err = errors.Join(err, <-second)
	tr.line.Heal()
	release()
	releaseSecond()
	return err
}

// awaitQueue polls until the second client's key is in the queue.
func (tr *overlapTrial) awaitQueue(ctx context.Context) error {
	for {
		resp, err := tr.waiters.Get(ctx, tr.name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count == 2 {
			return err
		}
		if err := overlapPause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// cutAfter cuts the first holder off.
func (tr *overlapTrial) cutAfter(ctx context.Context, d time.Duration) error {
	if err := overlapPause(ctx, d); err != nil {
		return err
	}
	tr.line.Each((*faults.Proxy).BlackHole)
	tr.cut = time.Now()
	return nil
}

func overlapPause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// overlapLocker takes a lock on a new session. Lost is closed when the holder learns of the loss; release ends the
// session.
type overlapLocker func(ctx context.Context, client *clientv3.Client, ttl time.Duration, name string) (lost <-chan struct{}, release func(), err error)

func overlapLease(ctx context.Context, client *clientv3.Client, ttl time.Duration, name string) (<-chan struct{}, func(), error) {
	s, err := lease.NewSession(ctx, client, lease.Options{TTL: ttl})
	if err != nil {
		return nil, nil, err
	}
	release := func() { _ = s.Close(ctx) } // fails if the lease is gone
	l, err := s.Lock(ctx, name)
	if err != nil {
		release()
		return nil, nil, err
	}
	return l.Context().Done(), release, nil
}

func overlapStock(ctx context.Context, client *clientv3.Client, ttl time.Duration, name string) (<-chan struct{}, func(), error) {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)), concurrency.WithContext(ctx))
	if err != nil {
		return nil, nil, err
	}
	release := func() { _ = s.Close() }
	if err := concurrency.NewMutex(s, name).Lock(ctx); err != nil {
		release()
		return nil, nil, err
	}
	return s.Done(), release, nil
}
