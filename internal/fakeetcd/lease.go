package fakeetcd

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

const (
	minTTL       = 2 // seconds; ceil(1.5 × the default election timeout)
	maxTTL       = 9_000_000_000
	scanInterval = 500 * time.Millisecond
	firstLeaseID = 0x32693a1b7c5d0001 // as long as a real one, because leasefence's keys contain it in hex
)

type lease struct {
	id, ttl int64
	client  *Client // that was granted it
	expiry  time.Time
	keys    map[string]struct{}
	revoked chan struct{} // closed once the lease is gone
}

func (l *lease) expired(now time.Time) bool { return !now.Before(l.expiry) }

// lessor owns the leases. Server.mu guards it.
type lessor struct {
	srv    *Server
	leases map[int64]*lease
	nextID int64
	rate   float64     // of its clock, relative to the bubble's
	timer  *time.Timer // for the scan that will find the first expired lease; nil while there is no lease
}

func (le *lessor) attach(id int64, key string) {
	if l := le.leases[id]; l != nil {
		l.keys[key] = struct{}{}
	}
}

func (le *lessor) detach(id int64, key string) {
	if l := le.leases[id]; l != nil {
		delete(l.keys, key)
	}
}

func (le *lessor) grant(c *Client, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > maxTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	id := le.nextID
	le.nextID++
	l := &lease{id: id, client: c, ttl: max(r.TTL, minTTL), keys: make(map[string]struct{}), revoked: make(chan struct{})}
	le.leases[id] = l
	le.refresh(l)
	le.schedule()
	le.srv.signal()
	return &pb.LeaseGrantResponse{Header: le.srv.header(), ID: id, TTL: l.ttl}, nil
}

// renew answers with TTL 0 for an unknown lease, as the API does. For a lease that has expired but is not revoked yet
// it returns a pendingError, because etcd holds the answer back until the revocation.
func (le *lessor) renew(id int64) (*pb.LeaseKeepAliveResponse, error) {
	resp := &pb.LeaseKeepAliveResponse{Header: le.srv.header(), ID: id}
	l := le.leases[id]
	if l == nil {
		return resp, nil
	}
	if l.expired(time.Now()) {
		return nil, &pendingError{until: l.revoked}
	}
	le.refresh(l)
	le.schedule()
	resp.TTL = l.ttl
	return resp, nil
}

func (le *lessor) timeToLive(r *pb.LeaseTimeToLiveRequest) *pb.LeaseTimeToLiveResponse {
	resp := &pb.LeaseTimeToLiveResponse{Header: le.srv.header(), ID: r.ID, TTL: -1}
	l := le.leases[r.ID]
	if l == nil {
		return resp
	}
	resp.TTL = int64(time.Until(l.expiry).Seconds())
	resp.GrantedTTL = l.ttl
	if r.Keys {
		for _, k := range slices.Sorted(maps.Keys(l.keys)) {
			resp.Keys = append(resp.Keys, []byte(k))
		}
	}
	return resp
}

// revoke deletes all keys of a lease in one revision, in the order of their names.
func (le *lessor) revoke(id int64, direct bool) (*pb.LeaseRevokeResponse, error) {
	l := le.leases[id]
	if l == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	t := &tx{srv: le.srv, direct: direct}
	for _, k := range slices.Sorted(maps.Keys(l.keys)) {
		t.deleteRange(&pb.DeleteRangeRequest{Key: []byte(k)})
	}
	delete(le.leases, id)
	t.commit()
	close(l.revoked)
	le.schedule()
	le.srv.signal()
	return &pb.LeaseRevokeResponse{Header: le.srv.header()}, nil
}

func (le *lessor) refresh(l *lease) {
	l.expiry = time.Now().Add(time.Duration(float64(l.ttl) / le.rate * float64(time.Second)))
}

func (le *lessor) byExpiry() []*lease {
	return slices.SortedFunc(maps.Values(le.leases), func(a, b *lease) int {
		return cmp.Or(a.expiry.Compare(b.expiry), cmp.Compare(a.id, b.id))
	})
}

// schedule sets the timer for the next scan that has something to do. A ticker would keep a deadlocked bubble alive.
func (le *lessor) schedule() {
	if le.timer != nil {
		le.timer.Stop()
		le.timer = nil
	}
	if len(le.leases) == 0 || le.srv.life.Err() != nil {
		return
	}
	first := le.byExpiry()[0].expiry
	le.timer = time.AfterFunc(le.srv.untilTick(scanInterval, first), le.scan)
}

func (le *lessor) scan() {
	le.srv.mu.Lock()
	defer le.srv.mu.Unlock()
	if le.srv.life.Err() != nil {
		return
	}
	for _, l := range le.byExpiry() {
		if !l.expired(time.Now()) {
			break
		}
		_, _ = le.revoke(l.id, false) // the lease exists: the mutex has been held since it was listed
	}
	le.schedule()
}

// Lease is a lease as the server sees it.
type Lease struct {
	ID     clientv3.LeaseID
	Client *Client       // that was granted it
	TTL    time.Duration // as granted
	Expiry time.Time     // when it expires unless it is renewed; the revocation follows within 500 ms
	Keys   []string
}

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
		k.fail(err)
	}
}

type keepAliveStream struct {
	stream[pb.LeaseKeepAliveResponse]

	endpoint string
}

func (k *keepAliveStream) Send(r *pb.LeaseKeepAliveRequest) error {
	k.c.srv.mu.Lock()
	ended := k.err != nil && !k.c.cut
	k.c.srv.mu.Unlock()
	if ended {
		return io.EOF // as in gRPC: Recv returns the reason
	}
	transmit(k.ctx, k.c, k.endpoint, KeepAliveOnce, r,
		func(Fault) (*pb.LeaseKeepAliveResponse, error) { return k.c.srv.lessor.renew(r.ID) },
		func(o outcome[pb.LeaseKeepAliveResponse]) {
			if o.err != nil {
				k.fail(o.err)
				return
			}
			k.push(o.msg, 0)
		})
	return nil
}
