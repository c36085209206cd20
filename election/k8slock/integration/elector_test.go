package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// Three candidates stop one after the other, and each one's token is larger than that before.
func TestElector_leadersInTurn(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	waiting := []*candidate{start(t, srv), start(t, srv), start(t, srv)}
	var guard fence.Guard
	var last *term
	for len(waiting) > 0 {
		led := leader(t, waiting...)
		waiting = without(led.candidate, waiting...)
		require.NoError(t, guard.Claim(name, led.token))
		require.NoError(t, guard.Check(name, led.token))
		if last != nil {
			require.Greater(t, led.token, last.token)
			require.ErrorIs(t, guard.Check(name, last.token), fence.ErrStale, "a write of the last leader that was under way")
		}
		for _, c := range waiting {
			require.Empty(t, c.led)
		}
		led.end(t)
		require.Error(t, led.work.Err())
		last = led
	}
}

// A leader dies without a word: its record goes away by itself. Who starts after that leads at once.
func TestElector_nextAfterACrash(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	first := leader(t, start(t, srv))
	second := start(t, srv)
	first.proxy.BlackHole()
	first.stop()
	// The record expires at the server, or the elector finds that it has not changed for long, whichever is first.
	led := leader(t, second)
	require.Greater(t, led.token, first.token)

	gone := watchDeletion(t, srv)
	second.proxy.BlackHole()
	second.stop()
	await(t, gone, "the record did not expire")
	third := newCandidate(t, srv)
	third.run(t, 30*time.Minute, 20*time.Minute, 5*time.Minute) // its first look must do
	require.Greater(t, leader(t, third).token, led.token)
}

// An operator revokes the leader's lease: it is told and steps down, the other leads.
func TestElector_leaseRevoked(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	first := leader(t, start(t, srv))
	second := start(t, srv)
	for _, lease := range srv.Leases(t) {
		srv.Revoke(t, lease)
	}
	await(t, first.work.Done(), "the work was not told")
	require.ErrorIs(t, context.Cause(first.work), k8slock.ErrLost)
	require.Greater(t, leader(t, second).token, first.token)
	await(t, first.over, "the elector did not step down")
}

// A leader is cut off: it stops before another leads, and its late release does not touch the other's record.
func TestElector_partition(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	candidates := []*candidate{start(t, srv), start(t, srv)}
	var last fence.Token
	for range 2 {
		led := leader(t, candidates...)
		require.Greater(t, led.token, last)
		last = led.token
		rival := without(led.candidate, candidates...)[0]
		led.proxy.BlackHole()
		await(t, led.work.Done(), "the work was not told")
		over := await(t, led.over, "the elector did not stop")
		next := leader(t, rival)
		require.True(t, over.Before(next.began), "stopped %v, the next led %v", over, next.began)
		led.proxy.Restore()
		await(t, led.ran, "the elector did not return")
		require.NoError(t, next.work.Err())

		// The next round's leader is the rival.
		led.run(t, leaseDuration, renewDeadline, retryPeriod)
		rival.led <- &term{rival, next.began, next.token, next.work}
	}
}

// The server is away for longer than a lease.
func TestElector_serverStopped(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	candidates := []*candidate{start(t, srv), start(t, srv)}
	first := leader(t, candidates...)
	srv.Crash()
	over := await(t, first.over, "the elector did not stop")
	require.Error(t, first.work.Err())
	await(t, first.ran, "the elector did not return")
	srv.Restart(t)
	next := leader(t, without(first.candidate, candidates...)...)
	require.True(t, over.Before(next.began))
	require.Greater(t, next.token, first.token)
}

// Answers that are lost once do not cost the leadership, and do not change the token.
func TestElector_lostAnswers(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	first := newCandidate(t, srv)
	acquiring := first.in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Times: 1})
	first.run(t, leaseDuration, renewDeadline, retryPeriod)
	led := leader(t, first)
	require.Equal(t, 1, acquiring.Hits())
	require.Len(t, srv.Leases(t), 1, "an attempt after one whose answer was lost knows what that wrote")

	for _, method := range []string{faults.Txn, faults.LeaseKeepAlive} {
		for _, fault := range []faults.Fault{faults.LoseAnswer, faults.LoseRequest} {
			renewal := first.in.Inject(t, faults.Rule{Fault: fault, Method: method, Times: 1})
			await(t, renewal.Hit(), "there was no renewal")
			n := first.in.Answered(faults.Txn)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			require.NoError(t, first.in.AwaitAnswered(ctx, faults.Txn, n+2))
			cancel()
		}
	}
	token, ok := first.Token()
	require.True(t, ok)
	require.Equal(t, led.token, token)
	require.NoError(t, led.work.Err())
	require.Empty(t, first.over)
}

// watchDeletion returns a channel that is closed when the record is deleted.
func watchDeletion(t *testing.T, srv *etcdtest.Server) <-chan struct{} {
	t.Helper()
	gone := make(chan struct{})
	watch := srv.Client(t).Watch(t.Context(), key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	created := <-watch
	require.NoError(t, created.Err())
	go func() {
		for resp := range watch {
			if len(resp.Events) > 0 {
				close(gone)
				return
			}
		}
	}()
	return gone
}
