package faults_test

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// intercepted starts a server and returns a client whose messages go through the interceptor.
func intercepted(t *testing.T) (*etcdtest.Server, *clientv3.Client, *faults.Interceptor) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	return srv, srv.Client(t, etcdtest.Dial(in.DialOptions()...)), in
}

// What each fault does to a request: the caller's answer, and how often the server has executed the request when the
// caller gets it, and in the end.
func TestInterceptor(t *testing.T) {
	for fault, want := range map[faults.Fault]struct {
		lost, delayed bool
		at, end       int
	}{
		faults.LoseRequest:   {lost: true},
		faults.LoseAnswer:    {lost: true, at: 1, end: 1},
		faults.DelayRequest:  {delayed: true, at: 1, end: 1},
		faults.DelayAnswer:   {delayed: true, at: 1, end: 1},
		faults.LateRequest:   {lost: true, end: 1},
		faults.RepeatRequest: {at: 1, end: 2},
	} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			t.Parallel()
			const delay = 2 * time.Second
			srv, client, in := intercepted(t)
			executed := func() int {
				n := 0
				for _, kv := range srv.KeyValues(t, "key") {
					n += int(kv.Version)
				}
				return n
			}
			injected := in.Inject(t, faults.Rule{Fault: fault, Method: faults.Put, Times: 1, Delay: delay})
			ctx, cancel := context.WithCancel(rig.Bounded(t))
			began := time.Now()
			_, err := client.Put(ctx, "key", "")
			cancel() // a late request arrives all the same
			require.Equal(t, want.lost, status.Code(err) == codes.Unavailable)
			require.Equal(t, want.delayed, time.Since(began) >= delay)
			require.Equal(t, want.at, executed())
			require.Equal(t, 1, injected.Hits())
			require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.Put, want.end))
			require.Equal(t, want.end, executed())
			require.Equal(t, 1, in.Sent(faults.Put))
		})
	}
}

func TestInterceptor_silentLoss(t *testing.T) {
	_, client, in := intercepted(t)
	grant, err := client.Grant(rig.Bounded(t), 60)
	require.NoError(t, err)
	for answers, fault := range []faults.Fault{faults.LoseRequest, faults.LoseAnswer} {
		lost := in.Inject(t, faults.Rule{Fault: fault, Method: faults.LeaseKeepAlive, Times: 1, Silent: true})
		ctx, cancel := context.WithCancel(rig.Bounded(t))
		go func() {
			<-lost.Hit()
			cancel()
		}()
		_, err = client.KeepAliveOnce(ctx, grant.ID)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, answers, in.Answered(faults.LeaseKeepAlive))
	}
}

func TestInterceptor_brokenStream(t *testing.T) {
	_, client, in := intercepted(t)
	in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive})
	stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(rig.Bounded(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: 1}))
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Error(t, stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: 1}))
}

func TestProxy_refusesUntilRestore(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, srv.Endpoint())
	client := srv.Client(t, etcdtest.Via(proxy.Addr()))
	_, err := client.Put(rig.Bounded(t), "key", "")
	require.NoError(t, err)

	proxy.Refuse()
	conn, err := net.Dial("tcp", proxy.Addr()) // either Dial or Read sees the reset
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		require.NoError(t, conn.Close())
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	rig.Eventually(t, func() bool { return proxy.Connections() == 0 }, func() string { return "a connection is left" })
	proxy.Restore()
	_, err = client.Get(rig.Bounded(t), "key") // the client repeats a read if it had not noticed that its connection was reset
	require.NoError(t, err)
}
