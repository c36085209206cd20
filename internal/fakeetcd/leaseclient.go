package fakeetcd

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

type leaseClient struct{ c *Client }

func (l leaseClient) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return unary(ctx, l.c, Grant, r, func() (*pb.LeaseGrantResponse, error) {
		return l.c.srv.lessor.grant(r)
	})
}

func (l leaseClient) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return unary(ctx, l.c, Revoke, r, func() (*pb.LeaseRevokeResponse, error) {
		return l.c.srv.lessor.revoke(r.ID)
	})
}

func (l leaseClient) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption,
) (*pb.LeaseTimeToLiveResponse, error) {
	return unary(ctx, l.c, TimeToLive, r, func() (*pb.LeaseTimeToLiveResponse, error) {
		return l.c.srv.lessor.timeToLive(r), nil
	})
}

func (l leaseClient) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	return unary(ctx, l.c, Leases, r, func() (*pb.LeaseLeasesResponse, error) {
		return l.c.srv.lessor.list(), nil
	})
}

// LeaseKeepAlive opens a stream, for which, as in gRPC, no message need get through.
func (l leaseClient) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return &keepAliveStream{newStream[pb.LeaseKeepAliveResponse](ctx, l.c)}, nil
}

type keepAliveStream struct {
	stream[pb.LeaseKeepAliveResponse]
}

func (k *keepAliveStream) Send(r *pb.LeaseKeepAliveRequest) error {
	transmit(k.ctx, k.c, KeepAliveOnce, r,
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
