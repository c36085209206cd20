package etcd_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
)

// leases is a server for renewals alone; the test sends the answers itself.
type leases struct {
	pb.UnimplementedLeaseServer

	streams chan pb.Lease_LeaseKeepAliveServer
	end     chan error    // ends the present stream
	begun   chan struct{} // one value per connection made
	ended   chan struct{} // one value per connection ended
}

func (s *leases) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	s.streams <- stream
	select {
	case err := <-s.end:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (*leases) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*leases) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*leases) HandleRPC(context.Context, stats.RPCStats)                         {}

func (s *leases) HandleConn(_ context.Context, c stats.ConnStats) {
	switch c.(type) {
	case *stats.ConnBegin:
		s.begun <- struct{}{}
	case *stats.ConnEnd:
		s.ended <- struct{}{}
	}
}

func serveLeases(t *testing.T) (s *leases, addr string) {
	t.Helper()
	s = &leases{
		streams: make(chan pb.Lease_LeaseKeepAliveServer, 9), end: make(chan error), begun: make(chan struct{}, 9), ended: make(chan struct{}, 9),
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.StatsHandler(s))
	pb.RegisterLeaseServer(srv, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		srv.Stop()
		serving.Wait()
	})
	return s, l.Addr().String()
}

// keepAlive renews at an endpoint, with a client whose own endpoint is one where nobody listens.
func keepAlive(t *testing.T, endpoint string) *etcd.KeepAlive {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return etcd.Of(client).NewKeepAlive(t.Context(), 7, endpoint, time.Minute)
}

// A KeepAlive for one endpoint has a connection of its own, which outlasts a broken stream and ends with Close. One
// renewal is under way at a time, and Close ends it.
func TestKeepAlive_ofAnEndpoint(t *testing.T) {
	s, addr := serveLeases(t)
	k := keepAlive(t, addr)
	type outcome struct {
		etcd.Renewal

		err error
	}
	renew := func() <-chan outcome {
		got := make(chan outcome, 1)
		go func() {
			r, err := k.Renew(clock.System)
			got <- outcome{r, err}
		}()
		return got
	}
	answer := func(stream pb.Lease_LeaseKeepAliveServer, rev int64) {
		t.Helper()
		r, err := stream.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 7, r.ID)
		require.NoError(t, stream.Send(&pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{Revision: rev}, ID: r.ID, TTL: 9}))
	}

	one, two := renew(), renew() // which waits for the first
	stream := <-s.streams
	answer(stream, 1)
	answer(stream, 2)
	for _, got := range []<-chan outcome{one, two} {
		o := <-got
		require.NoError(t, o.err)
		require.False(t, o.Reopened)
	}

	three := renew()
	_, err := stream.Recv()
	require.NoError(t, err)
	s.end <- rpctypes.ErrGRPCNoLeader
	require.ErrorIs(t, (<-three).err, rpctypes.ErrNoLeader)
	four := renew()
	answer(<-s.streams, 4)
	o := <-four
	require.NoError(t, o.err)
	require.False(t, o.Reopened, "the third renewal has reported the break")
	require.Len(t, s.begun, 1, "one connection for both streams")

	five := renew()
	k.Close()
	require.Error(t, (<-five).err)
	<-s.ended
	_, err = k.Renew(clock.System)
	require.Error(t, err)
	require.Len(t, s.begun, 1)
}

// A renewal after Close, for example by a goroutine that starts late, makes no connection: nobody would close it.
func TestKeepAlive_lateRenewalMakesNoConnection(t *testing.T) {
	k := keepAlive(t, "127.0.0.1:1")
	k.Close()
	_, err := k.Renew(clock.System)
	require.Error(t, err)
	require.False(t, k.Dialed())
}

// Open comes late if the first renewal is due at once, as after a slow grant of the lease.
func TestKeepAlive_Open_doesNotWaitForARenewal(t *testing.T) {
	s, addr := serveLeases(t)
	k := keepAlive(t, addr)
	defer k.Close()
	go func() { _, _ = k.Renew(clock.System) }()
	_, err := (<-s.streams).Recv() // and does not answer
	require.NoError(t, err)
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		k.Open()
	}()
	select {
	case <-opened:
	case <-time.After(5 * time.Second):
		require.FailNow(t, "Open waits")
	}
}
