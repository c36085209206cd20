package fakeetcd

import (
	"context"
	"io"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

type leaseClient struct {
	pb.LeaseClient // LeaseLeases
	c              *Client
}

func (l leaseClient) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return unary(ctx, l.c, Grant, r, func() (*pb.LeaseGrantResponse, error) {
		return l.c.srv.lessor.grant(l.c, r)
	})
}

func (l leaseClient) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return unary(ctx, l.c, Revoke, r, func() (*pb.LeaseRevokeResponse, error) {
		return l.c.srv.lessor.revoke(r.ID, false)
	})
}

func (l leaseClient) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption,
) (*pb.LeaseTimeToLiveResponse, error) {
	return unary(ctx, l.c, TimeToLive, r, func() (*pb.LeaseTimeToLiveResponse, error) {
		return l.c.srv.lessor.timeToLive(r), nil
	})
}

// LeaseKeepAlive opens a stream. As in gRPC, that takes no message to the server.
func (l leaseClient) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return l.c.openKeepAlive(ctx, ""), nil
}

// keepAliveOpener is the etcd.Opener of the client, which has no connection.
type keepAliveOpener struct {
	clientv3.Lease
	c *Client
}

func (o keepAliveOpener) KeepAliveEndpoints() []string { return o.c.KeepAliveEndpoints }

func (o keepAliveOpener) OpenKeepAlive(ctx context.Context, endpoint string) (pb.Lease_LeaseKeepAliveClient, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	o.c.srv.mu.Lock()
	defer o.c.srv.mu.Unlock()
	k := o.c.openKeepAlive(ctx, endpoint)
	o.c.keepAlives = append(o.c.keepAlives, k)
	return k, nil
}

// KeepAliveStreams returns the endpoints of the keep-alive streams that were opened, oldest first, without those of
// KeepAliveOnce.
func (c *Client) KeepAliveStreams() []string {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	var endpoints []string
	for _, k := range c.keepAlives {
		endpoints = append(endpoints, k.endpoint)
	}
	return endpoints
}

// OpenKeepAlives returns how many of these streams have not been closed.
func (c *Client) OpenKeepAlives() int {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	n := 0
	for _, k := range c.keepAlives {
		if k.ctx.Err() == nil {
			n++
		}
	}
	return n
}

func (c *Client) openKeepAlive(ctx context.Context, endpoint string) *keepAliveStream {
	return &keepAliveStream{newStream[pb.LeaseKeepAliveResponse](ctx, c), endpoint}
}

// BreakKeepAlives ends the client's keep-alive streams with err, and drops answers under way.
func (c *Client) BreakKeepAlives(err error) {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	for _, k := range c.keepAlives {
		k.in.fail(err)
	}
}

type keepAliveStream struct {
	stream[pb.LeaseKeepAliveResponse]

	endpoint string
}

func (k *keepAliveStream) Send(r *pb.LeaseKeepAliveRequest) error {
	k.c.srv.mu.Lock()
	ended := k.in.ended() && !k.c.cut
	k.c.srv.mu.Unlock()
	if ended {
		return io.EOF // as in gRPC: Recv returns the reason
	}
	transmit(k.ctx, k.c, k.endpoint, KeepAliveOnce, r,
		func(Fault) (*pb.LeaseKeepAliveResponse, error) { return k.c.srv.lessor.renew(r.ID) },
		func(o outcome[pb.LeaseKeepAliveResponse]) {
			if o.err != nil {
				k.in.fail(o.err)
				return
			}
			k.in.push(o.msg, 0)
		})
	return nil
}
