package integration_test

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// requireRenewed waits until a renewal has been acknowledged that was sent after the call, and requires that the
// session's lease is the one of before.
func requireRenewed(t *testing.T, s *lease.Session, id clientv3.LeaseID) {
	t.Helper()
	start := time.Now()
	st := s.Status()
	want := start.Add(st.TTL - min(st.TTL/10, time.Second)) // less the default margin
	for st.Deadline.Before(want) {
		require.NotEqualf(t, lease.Lost, st.State, "lost after %v: %v", time.Since(start), st.Err)
		require.Less(t, time.Since(start), patience, "no renewal is acknowledged")
		time.Sleep(5 * time.Millisecond) // Changes tells of states and not of renewals
		st = s.Status()
	}
	require.Equal(t, id, st.LeaseID)
}

// requireAlive requires that the handle is live and its key at the server.
func requireAlive(t *testing.T, srv *etcdtest.Server, l *lease.Lock) {
	t.Helper()
	require.NoError(t, context.Cause(l.Context()))
	require.Contains(t, srv.Keys(t, l.Name()+"/"), l.Key())
}

// changesOf returns a function that waits for the next change of a session's state or lease.
func changesOf(t *testing.T, s *lease.Session) func() (lease.Status, bool) {
	t.Helper()
	next, stop := iter.Pull(s.Changes(bounded(t)))
	t.Cleanup(stop)
	return next
}

// requireNext requires that the next change is to a state on a lease.
func requireNext(t *testing.T, next func() (lease.Status, bool), want lease.State, id clientv3.LeaseID) lease.Status {
	t.Helper()
	st, ok := next()
	require.True(t, ok, "the changes have ended")
	require.Equal(t, want.String(), st.State.String())
	require.Equal(t, id, st.LeaseID)
	return st
}

// requireLost requires that a handle is lost, and of what reason.
func requireLost(t *testing.T, cause error, want lease.Reason, id clientv3.LeaseID) {
	t.Helper()
	var lost *lease.LostError
	require.ErrorAs(t, cause, &lost)
	require.ErrorIs(t, cause, lease.ErrLost)
	require.Equal(t, want.String(), lost.Reason.String())
	require.Equal(t, id, lost.LeaseID)
}

// pain 21: the TTL asked for is not the one given.
func TestSession_usesTheGrantedTTL(t *testing.T) {
	t.Parallel()
	link := newFaultyLink(t, etcdtest.Start(t, etcdtest.Options{}))
	before := time.Now()
	s := newSession(t, link.client, lease.Options{TTL: time.Second})
	l := mustLock(t, s, "name")
	link.proxy.BlackHole() // the first renewal is due two thirds of a second after the grant
	st := s.Status()
	after := time.Now()

	require.Equal(t, minTTL, st.TTL)
	const life = minTTL - minTTL/10
	require.WithinRange(t, st.Deadline, before.Add(life), after.Add(life))
	requireLost(t, awaitDone(t, l), lease.DeadlinePassed, st.LeaseID)
	require.False(t, time.Now().Before(st.Deadline), "lost before the deadline")
}

// pain 23, and pain 2 for the holder: a watch of an isolated client never fails, so holder and waiter have a timer.
func TestLock_isolatedHolderAndWaiterAreTold(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	sound := newSession(t, srv.Client(t), lease.Options{})
	theirs := mustLock(t, sound, "theirs")
	link := newFaultyLink(t, srv)
	holder := newSession(t, link.client, lease.Options{TTL: minTTL})
	waiter := newSession(t, link.client, lease.Options{TTL: minTTL})
	l := mustLock(t, holder, "ours")
	waited := make(chan error, 1)
	go func() {
		_, err := waiter.Lock(context.WithoutCancel(t.Context()), "theirs") // no bound but the lease
		waited <- err
	}()
	awaitQueued(t, srv, "theirs", 2)

	link.proxy.BlackHole()
	delivered := link.proxy.Answers.Traffic().Delivered
	requireLost(t, awaitDone(t, l), lease.DeadlinePassed, holder.Status().LeaseID)
	select {
	case err := <-waited:
		requireLost(t, err, lease.DeadlinePassed, waiter.Status().LeaseID)
	case <-time.After(patience):
		require.FailNow(t, "the waiter does not learn that it is isolated")
	}
	require.Equal(t, delivered, link.proxy.Answers.Traffic().Delivered, "the network had a hand in it")

	awaitQueued(t, srv, "ours", 0)
	awaitQueued(t, srv, "theirs", 1)
	requireAlive(t, srv, theirs)
}

// awaitQueued waits until so many keys stand in the queue.
func awaitQueued(t *testing.T, srv *etcdtest.Server, name string, n int) {
	t.Helper()
	for start := time.Now(); len(srv.Keys(t, name+"/")) != n; time.Sleep(5 * time.Millisecond) {
		require.Lessf(t, time.Since(start), patience, "keys of %q: %v, want %d", name, srv.Keys(t, name+"/"), n)
	}
}

// A blip that is shorter than the deadline costs nothing: no lock, no lease.
func TestSession_survivesABlip(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		begin, end func(*testing.T, *etcdtest.Server, *faults.Proxy)
	}{
		{
			"black hole",
			func(_ *testing.T, _ *etcdtest.Server, p *faults.Proxy) { p.BlackHole() },
			func(_ *testing.T, _ *etcdtest.Server, p *faults.Proxy) { p.Restore() },
		},
		{
			"connections refused",
			func(_ *testing.T, _ *etcdtest.Server, p *faults.Proxy) { p.Refuse() },
			func(_ *testing.T, _ *etcdtest.Server, p *faults.Proxy) { p.Restore() },
		},
		{
			"server restart",
			func(_ *testing.T, srv *etcdtest.Server, _ *faults.Proxy) { srv.Stop() },
			func(t *testing.T, srv *etcdtest.Server, _ *faults.Proxy) { t.Helper(); srv.Restart(t) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			link := newFaultyLink(t, srv)
			s := newSession(t, link.client, lease.Options{TTL: 6 * time.Second})
			l := mustLock(t, s, "name")
			id := s.Status().LeaseID
			next := changesOf(t, s)
			requireNext(t, next, lease.Held, id)

			tt.begin(t, srv, link.proxy)
			requireNext(t, next, lease.Jeopardy, id)
			tt.end(t, srv, link.proxy)
			requireNext(t, next, lease.Held, id)
			requireRenewed(t, s, id)
			requireAlive(t, srv, l)
			require.NoError(t, l.Unlock(bounded(t)))
		})
	}
}

// pain 38: one failed heartbeat is no loss, whichever way it fails.
func TestSession_survivesALostHeartbeat(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	link := newFaultyLink(t, srv)
	s := newSession(t, link.client, lease.Options{TTL: minTTL})
	l := mustLock(t, s, "name")
	id := s.Status().LeaseID
	for _, fault := range []faults.Fault{faults.LoseRequest, faults.LoseAnswer} {
		for _, silent := range []bool{false, true} {
			lost := link.in.Inject(t, faults.Rule{Fault: fault, Method: faults.LeaseKeepAlive, Times: 1, Silent: silent})
			select {
			case <-lost.Hit():
			case <-bounded(t).Done():
				require.FailNow(t, "no renewal is sent")
			}
			requireRenewed(t, s, id)
			requireAlive(t, srv, l)
		}
	}
}

// pain 38: the context of the acquisition ends with the acquisition.
func TestLock_outlivesTheContextOfItsAcquisition(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{TTL: minTTL})
	id := s.Status().LeaseID
	ctx, cancel := context.WithCancel(bounded(t))
	l, err := s.Lock(ctx, "name")
	require.NoError(t, err)
	cancel()
	requireRenewed(t, s, id)
	requireAlive(t, srv, l)
}

// pain 37: trust is counted from the send. A renewal that was answered late counts, from when it was sent.
func TestSession_countsTheDeadlineFromTheSend(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	link := newFaultyLink(t, etcdtest.Start(t, etcdtest.Options{}))
	s := newSession(t, link.client, lease.Options{TTL: ttl})
	l := mustLock(t, s, "name")
	granted := s.Status()
	next := changesOf(t, s)
	requireNext(t, next, lease.Held, granted.LeaseID)

	sent := make(chan time.Time, 1)
	link.in.OnRequest(func(method string, _ any) {
		if method == faults.LeaseKeepAlive {
			select {
			case sent <- time.Now():
			default:
			}
		}
	})
	late := link.in.Inject(t, faults.Rule{Fault: faults.DelayAnswer, Method: faults.LeaseKeepAlive, Times: 1, Delay: 2 * ttl / 5})
	<-late.Hit()
	// No other renewal gets through.
	link.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
	requireNext(t, next, lease.Jeopardy, granted.LeaseID)
	st := requireNext(t, next, lease.Held, granted.LeaseID)
	require.True(t, st.Deadline.After(granted.Deadline), "the late answer does not count")
	require.False(t, st.Deadline.After((<-sent).Add(ttl-ttl/10)), "counted from later than the send")

	requireNext(t, next, lease.Jeopardy, granted.LeaseID)
	requireNext(t, next, lease.Lost, granted.LeaseID)
	requireLost(t, awaitDone(t, l), lease.DeadlinePassed, granted.LeaseID)
}

// pain 11: after a loss the session heals, and what was lost stays lost. The states come in order.
func TestSession_healsAfterALoss(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for _, tt := range []struct {
		name   string
		lose   func(*faultyLink, clientv3.LeaseID)
		states []lease.State
		reason lease.Reason
	}{
		{
			"cut off",
			func(l *faultyLink, _ clientv3.LeaseID) { l.proxy.BlackHole() },
			[]lease.State{lease.Jeopardy, lease.Lost},
			lease.DeadlinePassed,
		},
		{
			"revoked",
			func(_ *faultyLink, id clientv3.LeaseID) { srv.Revoke(t, id) },
			[]lease.State{lease.Lost},
			lease.LeaseGone,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			link := newFaultyLink(t, srv)
			s := newSession(t, link.client, lease.Options{TTL: minTTL})
			old := mustLock(t, s, tt.name)
			id := s.Status().LeaseID
			next := changesOf(t, s)
			requireNext(t, next, lease.Held, id)

			tt.lose(link, id)
			var st lease.Status
			for _, state := range tt.states {
				st = requireNext(t, next, state, id)
			}
			requireLost(t, st.Err, tt.reason, id)
			requireLost(t, awaitDone(t, old), tt.reason, id)
			link.proxy.Restore()

			l := mustLock(t, s, tt.name)
			healed := s.Status()
			require.NotEqual(t, id, healed.LeaseID)
			requireNext(t, next, lease.Held, healed.LeaseID)
			require.Greater(t, l.Token(), old.Token())
			requireRenewed(t, s, healed.LeaseID)
			requireAlive(t, srv, l)
			requireLost(t, context.Cause(old.Context()), tt.reason, id)
			requireLost(t, old.Unlock(bounded(t)), tt.reason, id)

			require.NoError(t, s.Close(bounded(t)))
			st = requireNext(t, next, lease.Lost, healed.LeaseID)
			requireLost(t, st.Err, lease.SessionClosed, healed.LeaseID)
			_, more := next()
			require.False(t, more)
		})
	}
}

// pain 11: a lease that has gone without the session's knowledge is no error of the acquisition that finds it out.
func TestSession_replacesALeaseThatHasGoneUnnoticed(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{TTL: time.Minute})
	id := s.Status().LeaseID
	for _, lock := range []func(context.Context, string) (*lease.Lock, error){s.Lock, s.TryLock} {
		srv.Revoke(t, id)
		l, err := lock(bounded(t), "name")
		require.NoError(t, err)
		require.NotEqual(t, id, s.Status().LeaseID)
		id = s.Status().LeaseID
		requireAlive(t, srv, l)
		require.NoError(t, l.Unlock(bounded(t)))
	}
}
