package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

// A leader that is cut off stops before another leads, and its late release does not touch the other's record.
func TestElector_partition(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	candidates := []*candidate{start(t, srv), start(t, srv)}
	var last fence.Token
	for range 2 {
		led := leader(t, candidates...)
		require.Greater(t, led.token, last)
		last = led.token
		rival := without(led.candidate, candidates...)[0]
		led.proxy.BlackHole()
		await(t, led.work.Done(), "the context of the work did not end")
		over := await(t, led.over, "the elector did not stop")
		next := leader(t, rival)
		require.True(t, over.Before(next.began), "stopped %v, the next led %v", over, next.began)
		led.proxy.Restore()
		await(t, led.ran, "the elector did not return")
		require.NoError(t, next.work.Err())

		// The next round's leader is the rival.
		led.run(t)
		rival.led <- &term{rival, next.began, next.token, next.work}
	}
}

// If the server is down for longer than a lease, the leader stops before another leads.
func TestElector_serverStopped(t *testing.T) {
	t.Parallel()
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
