package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

// intercepted starts a server and returns a client whose messages go through the interceptor.
func intercepted(t *testing.T) (*etcdtest.Server, *clientv3.Client, *faults.Interceptor) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	return srv, srv.Client(t, etcdtest.Dial(in.DialOptions()...)), in
}

func TestInterceptor_lostRequestNeverReachesTheServer(t *testing.T) {
	for name, silent := range map[string]bool{"at once": false, "silently": true} {
		t.Run(name, func(t *testing.T) {
			srv, client, in := intercepted(t)
			lost := in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.Put, Times: 1, Silent: silent})

			ctx, cancel := context.WithCancel(rig.Bounded(t))
			defer cancel()
			result := put(ctx, client, "key")
			<-lost.Hit()
			if silent {
				require.Empty(t, result)
				cancel()
				require.ErrorIs(t, <-result, context.Canceled)
			} else {
				require.Equal(t, codes.Unavailable, status.Code(<-result))
			}
			require.Equal(t, 1, in.Sent(faults.Put))
			require.Zero(t, in.Answered(faults.Put))
			require.NoError(t, <-put(rig.Bounded(t), client, "next"))
			require.Equal(t, []string{"next"}, srv.Keys(t, ""))
		})
	}
}

func TestInterceptor_delayedRequestIsSentWhenReleased(t *testing.T) {
	srv, client, in := intercepted(t)
	release := make(chan struct{})
	delayed := in.Inject(t, faults.Rule{Fault: faults.DelayRequest, Method: faults.Put, Times: 2, Until: release})

	ctx, cancel := context.WithCancel(rig.Bounded(t))
	result := put(ctx, client, "given up")
	<-delayed.Hit()
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)

	result = put(rig.Bounded(t), client, "patient")
	rig.Eventually(t, func() bool { return delayed.Hits() == 2 }, func() string { return "the second request is not delayed" })
	require.Empty(t, srv.Keys(t, ""))
	close(release)
	require.NoError(t, <-result)
	require.Equal(t, []string{"patient"}, srv.Keys(t, ""))
}

func TestInterceptor_delayedAnswerComesAfterTheDelay(t *testing.T) {
	const delay = 50 * time.Millisecond
	srv, client, in := intercepted(t)
	delayed := in.Inject(t, faults.Rule{Fault: faults.DelayAnswer, Delay: delay})

	start := time.Now()
	result := put(rig.Bounded(t), client, "key")
	<-delayed.Hit()
	require.Equal(t, []string{"key"}, srv.Keys(t, ""), "the server has not executed the request")
	require.NoError(t, <-result)
	require.GreaterOrEqual(t, time.Since(start), delay)
}

func TestInterceptor_lateRequestArrivesAfterItsCallerHasGivenUp(t *testing.T) {
	srv, client, in := intercepted(t)
	release := make(chan struct{})
	in.Inject(t, faults.Rule{Fault: faults.LateRequest, Method: faults.Txn, Times: 1, Until: release})

	ctx, cancel := context.WithCancel(rig.Bounded(t))
	_, err := client.Txn(ctx).Then(clientv3.OpPut("key", "value")).Commit()
	require.Equal(t, codes.Unavailable, status.Code(err))
	cancel()
	require.NoError(t, <-put(rig.Bounded(t), client, "between"))

	close(release)
	require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.Txn, 1))
	require.Equal(t, []string{"between", "key"}, srv.Keys(t, ""))
	kvs := srv.KeyValues(t, "")
	require.Less(t, kvs[0].CreateRevision, kvs[1].CreateRevision, "the late request overtook the caller's next one")
}

func TestInterceptor_repeatedRequestArrivesTwice(t *testing.T) {
	srv, client, in := intercepted(t)
	release := make(chan struct{})
	repeated := in.Inject(t, faults.Rule{Fault: faults.RepeatRequest, Method: faults.Put, Times: 1, Until: release})

	require.NoError(t, <-put(rig.Bounded(t), client, "key"))
	require.Equal(t, []string{"key"}, srv.Keys(t, ""), "the first copy is not sent at once")
	require.EqualValues(t, 1, srv.KeyValues(t, "key")[0].Version)
	require.Equal(t, 1, repeated.Hits())

	close(release)
	require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.Put, 2))
	require.EqualValues(t, 2, srv.KeyValues(t, "key")[0].Version)
}
