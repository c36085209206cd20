package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/clock"
)

// KeepAlive renews one lease over a gRPC stream that lasts: a stream costs one authentication where the client has a password,
// and KeepAliveOnce of the client opens one for each renewal. It is opened at the first renewal, and again at the next one after it broke.
// One renewal at a time is under way, so an answer belongs to the only request that waits for one. A lost message can make
// an answer count from an earlier request, never from a later one.
type KeepAlive struct {
	Endpoint string // "": the client's own connection, which takes its endpoints in turn

	conn  *Conn
	id    clientv3.LeaseID
	bound time.Duration

	ctx    context.Context //nolint:containedctx // the life of the stream
	cancel context.CancelFunc

	mu      sync.Mutex       // held during a renewal; guards the fields below
	own     *grpc.ClientConn // with an endpoint
	current renewals         // nil: none is open
	end     context.CancelFunc
}

// renewals is the part of pb.Lease_LeaseKeepAliveClient that is used.
type renewals interface {
	Send(r *pb.LeaseKeepAliveRequest) error
	Recv() (*pb.LeaseKeepAliveResponse, error)
}

// Opener opens streams for a client without a connection: its Lease implements it. A client that has neither is renewed by
// KeepAliveOnce.
type Opener interface {
	OpenKeepAlive(ctx context.Context, endpoint string) (pb.Lease_LeaseKeepAliveClient, error)
	KeepAliveEndpoints() []string
}

// KeepAliveEndpoints are the client's; where it does not tell, as many unnamed ones as is usual.
func (c *Conn) KeepAliveEndpoints() []string {
	if o, ok := c.Client.Lease.(Opener); ok {
		return o.KeepAliveEndpoints()
	}
	if all := c.Client.Endpoints(); len(all) > 0 {
		return all
	}
	return make([]string, c.endpoints())
}

// NewKeepAlive makes one that lives until Close or the end of ctx. Opening its stream, with the authentication, may take for
// bound. With an endpoint it has a connection to that one alone, which is made when it is first needed.
func (c *Conn) NewKeepAlive(ctx context.Context, id clientv3.LeaseID, endpoint string, bound time.Duration) *KeepAlive {
	s := &KeepAlive{Endpoint: endpoint, conn: c, id: id, bound: bound}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// Close ends a renewal that is under way, waits for it and closes the stream's own connection.
func (s *KeepAlive) Close() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	if s.own != nil {
		_ = s.own.Close() // reports only that it is closed
	}
}

// Open opens the stream ahead of the first renewal: the authentication may take the server a while. If that fails, the
// renewal tries again.
func (s *KeepAlive) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		_ = s.open() // the renewal's error tells
	}
}

// Reset has the next renewal open the stream again. None must be under way.
func (s *KeepAlive) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// Renewal is the answer to one.
type Renewal struct {
	Sent     clock.Instant // when its request was sent
	Rev      int64         // that the member which was asked had seen by then
	Reopened bool          // the stream had broken since the renewal before
}

// Renew sends one renewal and waits for its answer, however long that takes. The error is rpctypes.ErrLeaseNotFound where the
// server does not have the lease. After any other error the next renewal opens the stream again.
func (s *KeepAlive) Renew(clk clock.Clock) (Renewal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a Renewal
	for {
		opened := s.current == nil
		if opened {
			if err := s.open(); err != nil {
				return a, explainRenewal(err)
			}
		}
		a.Sent = clk.Now() // before the request: the server cannot have begun to count earlier
		unsent := s.current.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)})
		if unsent != nil && !opened {
			// It had broken since the last renewal. The request has not left, so another stream is not another renewal.
			s.drop()
			a.Reopened = true
			continue
		}
		var resp *pb.LeaseKeepAliveResponse
		err := unsent
		if unsent == nil || errors.Is(unsent, io.EOF) {
			resp, err = s.current.Recv() // tells why nothing was sent, too
		}
		if errors.Is(err, io.EOF) || unsent != nil && err == nil {
			err = errEnded
		}
		if err != nil {
			s.drop()
			return a, explainRenewal(rpctypes.Error(err))
		}
		a.Rev = resp.GetHeader().GetRevision()
		if resp.TTL <= 0 {
			return a, rpctypes.ErrLeaseNotFound
		}
		return a, nil
	}
}

var errEnded = status.Error(codes.Unavailable, "etcd: the server ended the stream of renewals")

// drop forgets the present stream. s.mu must be held.
func (s *KeepAlive) drop() {
	if s.current != nil {
		s.end()
		s.current, s.end = nil, nil
	}
}

// open opens a stream, for no longer than the bound: a member that does not answer may be asked for the authentication, or be
// connected to. s.mu must be held.
func (s *KeepAlive) open() error {
	if err := s.ctx.Err(); err != nil { // after Close, who would close a connection that is made now?
		return status.FromContextError(err).Err()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	bound := time.AfterFunc(s.bound, cancel)
	opened, err := s.connect(ctx)
	if inTime := bound.Stop(); err == nil && !inTime {
		err = fmt.Errorf("%w: no stream of renewals could be opened in %v", ErrNotSent, s.bound)
	}
	if err != nil {
		cancel()
		return rpctypes.Error(err)
	}
	s.current, s.end = opened, cancel
	return nil
}

func (s *KeepAlive) connect(ctx context.Context) (renewals, error) {
	if o, ok := s.conn.Client.Lease.(Opener); ok {
		return o.OpenKeepAlive(ctx, s.Endpoint)
	}
	conn := s.conn.Client.ActiveConnection()
	switch {
	case conn == nil:
		return &unstreamed{ctx: ctx, client: s.conn.Client}, nil
	case s.Endpoint != "" && s.own == nil:
		dialed, err := s.conn.Client.Dial(s.Endpoint)
		if err != nil {
			return nil, err
		}
		s.own = dialed
	}
	if s.own != nil {
		conn = s.own
		if conn.GetState() == connectivity.TransientFailure {
			conn.ResetConnectBackoff()
		}
	}
	return pb.NewLeaseClient(conn).LeaseKeepAlive(ctx, grpc.WaitForReady(true))
}

// unstreamed stands for a stream of a client that has none.
type unstreamed struct {
	ctx    context.Context //nolint:containedctx // as that of a stream
	client *clientv3.Client
	id     int64
}

func (o *unstreamed) Send(r *pb.LeaseKeepAliveRequest) error {
	o.id = r.ID
	return nil
}

func (o *unstreamed) Recv() (*pb.LeaseKeepAliveResponse, error) {
	resp, err := RenewOnce(o.ctx, o.client, clientv3.LeaseID(o.id))
	if err != nil {
		return nil, err
	}
	return &pb.LeaseKeepAliveResponse{Header: resp.ResponseHeader, ID: o.id, TTL: resp.TTL}, nil
}

// RenewOnce renews a lease, in one attempt, over a stream of its own.
func RenewOnce(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := client.KeepAliveOnce(once{ctx}, id) //nolint:contextcheck // once is ctx
	return resp, explainRenewal(err)
}

// explainRenewal adds to an error of a renewal what is wrong, where the server's words hide it. Where the
// server does not know the client's auth token, or not yet, another attempt has another one: the client takes a new token for
// each stream, and does not repeat a stream as it does a request.
func explainRenewal(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%w (to renew a lease takes permission to write every key of it)", err)
	}
	return explain(err)
}
