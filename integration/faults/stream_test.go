package faults_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

func TestStream_silentlyLostKeepAliveEndsWithTheContext(t *testing.T) {
	for fault, answers := range map[faults.Fault]int{faults.LoseRequest: 0, faults.LoseAnswer: 1} {
		t.Run(fault.String(), func(t *testing.T) {
			_, client, in := intercepted(t)
			grant, err := client.Grant(rig.Bounded(t), 60)
			require.NoError(t, err)
			lost := in.Inject(t, faults.Rule{Fault: fault, Method: faults.LeaseKeepAlive, Silent: true})

			ctx, cancel := context.WithCancel(rig.Bounded(t))
			go func() {
				<-lost.Hit()
				cancel()
			}()
			_, err = client.KeepAliveOnce(ctx, grant.ID)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 1, in.Sent(faults.LeaseKeepAlive))
			require.Equal(t, answers, in.Answered(faults.LeaseKeepAlive))
		})
	}
}

func TestStream_delaysHoldMessages(t *testing.T) {
	for fault, answers := range map[faults.Fault]int{faults.DelayRequest: 0, faults.DelayAnswer: 1} {
		t.Run(fault.String(), func(t *testing.T) {
			ctx := rig.Bounded(t)
			_, client, in := intercepted(t)
			grant, err := client.Grant(ctx, 60)
			require.NoError(t, err)
			release := make(chan struct{})
			delayed := in.Inject(t, faults.Rule{Fault: fault, Method: faults.LeaseKeepAlive, Until: release})

			result := make(chan error, 1)
			go func() {
				_, err := client.KeepAliveOnce(ctx, grant.ID)
				result <- err
			}()
			<-delayed.Hit()
			require.Equal(t, answers, in.Answered(faults.LeaseKeepAlive))
			require.Empty(t, result)
			close(release)
			require.NoError(t, <-result)
		})
	}
}

func TestStream_watchLosesAnEventSilently(t *testing.T) {
	ctx := rig.Bounded(t)
	srv, client, in := intercepted(t)
	lost := in.Inject(t, faults.Rule{
		Fault: faults.LoseAnswer, Method: faults.Watch, Times: 1, Silent: true, Match: hasEvents,
	})
	watch := client.Watch(ctx, "key", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)

	other := srv.Client(t)
	require.NoError(t, <-put(ctx, other, "key1"))
	<-lost.Hit()
	require.NoError(t, <-put(ctx, other, "key2"))
	require.Equal(t, "key2", string((<-watch).Events[0].Kv.Key), "the watch does not go on after the lost event")
}

func TestStream_brokenStreamReturnsTheCode(t *testing.T) {
	_, client, in := intercepted(t)
	in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive})
	stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(rig.Bounded(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: 1}))
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Error(t, stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: 1}))
}

func hasEvents(message any) bool {
	resp, ok := message.(*etcdserverpb.WatchResponse)
	return ok && len(resp.Events) > 0
}
