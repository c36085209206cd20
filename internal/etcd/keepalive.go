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

// KeepAlive renews one lease over a lasting gRPC stream. A client with a password authenticates once per stream, and
// the client's KeepAliveOnce would open a stream for each renewal. The stream is opened at the first renewal, and
// again at the next renewal after it broke.
//
// One renewal at a time is under way, so an answer belongs to the only request that waits for one. If a message is
// lost, an answer may count from an earlier request than its own, never from a later one. That does not hold behind
// etcd's gRPC proxy, which sends renewals of its own and answers with the next answer to these.
type KeepAlive struct {
	Endpoint string // "": the client's own connection, which takes its endpoints in turn

	conn  *Conn
	id    clientv3.LeaseID
	bound time.Duration

	ctx    context.Context //nolint:containedctx // the life of the stream
	cancel context.CancelFunc

	mu      sync.Mutex       // held during a renewal; guards the fields below
	own     *grpc.ClientConn // the connection to Endpoint, if there is one
	current renewals         // nil: none is open
	end     context.CancelFunc
}

// renewals is the part of pb.Lease_LeaseKeepAliveClient that is used.
type renewals interface {
	Send(r *pb.LeaseKeepAliveRequest) error
	Recv() (*pb.LeaseKeepAliveResponse, error)
}

// Opener opens streams of renewals for a client without a connection, if the client's Lease implements it. A client
// with neither is renewed by KeepAliveOnce.
type Opener interface {
	OpenKeepAlive(ctx context.Context, endpoint string) (pb.Lease_LeaseKeepAliveClient, error)
	KeepAliveEndpoints() []string
}

// KeepAliveEndpoints returns the endpoints to renew at: the client's, or the usual number of empty names if it lists
// none.
func (c *Conn) KeepAliveEndpoints() []string {
	if o, ok := c.Client.Lease.(Opener); ok {
		return o.KeepAliveEndpoints()
	}
	if all := c.Client.Endpoints(); len(all) > 0 {
		return all
	}
	return make([]string, c.endpoints())
}

// NewKeepAlive returns a KeepAlive for the lease, which works until Close or the end of ctx, and which must be
// closed. Opening its stream, including authentication, may take up to bound. If endpoint is not empty, it makes a
// connection of its own to that endpoint at the first renewal.
func (c *Conn) NewKeepAlive(ctx context.Context, id clientv3.LeaseID, endpoint string, bound time.Duration) *KeepAlive {
	s := &KeepAlive{Endpoint: endpoint, conn: c, id: id, bound: bound}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// Close ends a renewal that is under way, waits for it, and closes the stream and the connection to Endpoint.
func (s *KeepAlive) Close() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	if s.own != nil {
		_ = s.own.Close() // fails only if it is already closed
	}
}

// Open opens the stream ahead of the first renewal, because the server may take a while to authenticate. If it fails,
// the renewal tries again. It does not wait for a renewal that is under way, which in a bubble of testing/synctest would
// stop the clock.
func (s *KeepAlive) Open() {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.current == nil {
		_ = s.open() // the renewal will report the error
	}
}

// Reset makes the next renewal open a new stream. It waits for a renewal that is under way.
func (s *KeepAlive) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// Renewal is the outcome of one renewal.
type Renewal struct {
	Sent     clock.Instant // when its request was sent
	Rev      int64         // the revision that the member had seen
	Reopened bool          // the stream had broken since the last renewal
}

// Renew sends one renewal and waits for its answer, however long that takes; Close and the end of the context of
// [Conn.NewKeepAlive] end the wait. The error is rpctypes.ErrLeaseNotFound if the server does not have the lease.
// After any other error the next renewal opens a new stream.
func (s *KeepAlive) Renew(clk clock.Clock) (Renewal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a Renewal
	for {
		opened := s.current == nil
		if opened {
			if err := s.open(); err != nil {
				return a, explain(explainRenewal(err))
			}
		}
		a.Sent = clk.Now() // before the request: the server cannot start the TTL earlier
		unsent := s.current.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)})
		if unsent != nil && !opened {
			// The stream broke since the last renewal. The request was not sent, so this is not a second renewal.
			s.drop()
			a.Reopened = true
			continue
		}
		var resp *pb.LeaseKeepAliveResponse
		err := unsent
		if unsent == nil || errors.Is(unsent, io.EOF) {
			resp, err = s.current.Recv() // also returns why Send failed
		}
		if errors.Is(err, io.EOF) || unsent != nil && err == nil {
			err = errEnded
		}
		if err != nil {
			s.drop()
			return a, explain(explainRenewal(rpctypes.Error(err)))
		}
		a.Rev = resp.GetHeader().GetRevision()
		if resp.TTL <= 0 {
			return a, rpctypes.ErrLeaseNotFound
		}
		return a, nil
	}
}

var errEnded = status.Error(codes.Unavailable, "etcd: the server ended the stream of renewals")

// drop ends the present stream. s.mu must be held.
func (s *KeepAlive) drop() {
	if s.current != nil {
		s.end()
		s.current, s.end = nil, nil
	}
}

// open opens a stream and gives up after the bound: authentication and connecting may meet a member that does not
// answer. s.mu must be held.
func (s *KeepAlive) open() error {
	if err := s.ctx.Err(); err != nil { // after Close nobody would close a connection that connect makes
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

// unstreamed is the stream of a client that has neither a connection nor an [Opener].
type unstreamed struct {
	ctx    context.Context //nolint:containedctx // the life of the stream
	client *clientv3.Client
	id     int64
}

func (o *unstreamed) Send(r *pb.LeaseKeepAliveRequest) error {
	o.id = r.ID
	return nil
}

func (o *unstreamed) Recv() (*pb.LeaseKeepAliveResponse, error) {
	resp, err := o.client.KeepAliveOnce(once{o.ctx}, clientv3.LeaseID(o.id))
	if err != nil {
		return nil, err
	}
	return &pb.LeaseKeepAliveResponse{Header: resp.ResponseHeader, ID: o.id, TTL: resp.TTL}, nil
}

// RenewOnce renews a lease, in one attempt, over a stream of its own. [Conn.Do] explains its other errors.
func RenewOnce(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := client.KeepAliveOnce(once{ctx}, id)
	return resp, explainRenewal(err)
}

// explainRenewal adds to an error of a renewal which permission is missing. If the server does not know the client's auth
// token, or not yet, the error becomes one that is retried: the client gets a new token for each stream, but does not
// retry a stream by itself, as it does a request.
func explainRenewal(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%w (renewing a lease requires permission to write every key attached to it)", err)
	}
	return err
}
