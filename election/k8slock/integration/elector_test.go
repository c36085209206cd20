package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// A leader that is cut off stops before another leads, and its late release does not touch the other's record.
func TestElector_partition(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	a, b := start(t, srv), start(t, srv)
	var last fence.Token
	for range 2 {
		led := leader(t, a, b)
		require.Greater(t, led.token, last)
		last = led.token
		rival := a
		if led.candidate == a {
			rival = b
		}
		led.proxy.BlackHole()
		rig.Await(t, led.work.Done(), "the context of the work did not end")
		over := rig.Await(t, led.over, "the elector did not stop")
		next := leader(t, rival)
		require.True(t, over.Before(next.began), "stopped %v, the next led %v", over, next.began)
		led.proxy.Restore()
		rig.Await(t, led.ran, "the elector did not return")
		require.NoError(t, next.work.Err())

		// The next round's leader is the rival.
		led.run(t)
		rival.led <- &term{rival, next.began, next.token, next.work}
	}
}
