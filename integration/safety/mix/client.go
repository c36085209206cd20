package mix

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// link is a client's way to the cluster: a proxy in front of each member. It lasts for the whole run.
type link struct {
	proxies   []*faults.Proxy
	endpoints []string
}

func (r *run) newLink() *link {
	proxies, endpoints := rig.NewProxies(r.tb, r.cluster.Endpoints())
	return &link{proxies, endpoints}
}

func (l *link) each(do func(*faults.Proxy)) {
	for _, p := range l.proxies {
		do(p)
	}
}

// client is an etcd client in this process. Its session is replaced now and then.
type client struct {
	*link
	name string
	id   *identity
	in   *faults.Interceptor
	etcd *clientv3.Client

	ttl    time.Duration // of its sessions
	era    uint16        // of its sessions
	adopts bool          // its sessions adopt leases that it has granted itself

	session   atomic.Pointer[lease.Session]
	replacing sync.Mutex // held while a session is replaced
}

// newClient returns a client without a session.
func (r *run) newClient(user string) *client {
	c := &client{link: r.newLink(), name: user, id: r.secured.newIdentity(r.tb, user), in: faults.NewInterceptor(r.tb), ttl: ttl}
	c.etcd = r.connect(c.endpoints, etcdtest.Dial(renewals{r.tape.Recorder}.options()...), etcdtest.Dial(c.in.DialOptions()...), c.id.option())
	return c
}

func (c *client) open(ctx context.Context) error {
	open := lease.NewSession
	if c.adopts {
		open = adopt
	}
	s, err := open(ctx, c.etcd, lease.Options{TTL: c.ttl, Owner: c.name, Era: c.era})
	if err == nil {
		c.session.Store(s)
	}
	return err
}

// adopt grants a lease and opens a session on it. Only the session renews the lease, so it expires after the session.
func adopt(ctx context.Context, etcd *clientv3.Client, opts lease.Options) (*lease.Session, error) {
	granted, err := etcd.Grant(ctx, int64(opts.TTL/time.Second))
	if err != nil {
		return nil, err
	}
	return lease.Adopt(ctx, etcd, granted.ID, opts)
}

// current is the client's session, which may be closed.
func (c *client) current() *lease.Session { return c.session.Load() }

// replace closes the session and opens another one. If ctx ends before that, the closed session stays.
func (c *client) replace(ctx context.Context) error {
	c.replacing.Lock()
	defer c.replacing.Unlock()
	closing, cancel := context.WithTimeout(ctx, ttl)
	_ = c.current().Close(closing) // a lease that was not revoked expires
	cancel()
	return insist(ctx, c.open) // etcd refuses while it has no space, or while the user lacks the permission
}

// closeSession closes a session. If servers are so slow that a lease is not revoked within its life, that is no error: it
// expires by itself.
func closeSession(ctx context.Context, s *lease.Session) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.Close(ctx)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// renewals records each grant and each renewal of a client's leases, right before the client gets the answer. From that
// the checker computes each lease's deadline, independently of the client.
type renewals struct{ log *history.Recorder }

// options must come before the options of package faults, so that an answer that is lost is not recorded.
func (r renewals) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.unary), grpc.WithChainStreamInterceptor(r.stream)}
}

func (r renewals) record(id int64, sent time.Duration) {
	now := r.log.Now()
	r.log.Record(history.Event{At: now, Kind: history.Renewed, Lease: id, Value: (now - sent).String()})
}

func (r renewals) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	sent := r.log.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	// A session chooses the ID of its lease. If the server chooses, the client grants the lease for a session to adopt.
	// That session counts from its first renewal, which may be answered after the grant has run out.
	asked, ok := req.(*etcdserverpb.LeaseGrantRequest)
	if ok && err == nil && asked.ID != 0 {
		r.record(asked.ID, sent)
	}
	return err
}

func (r renewals) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || method != faults.LeaseKeepAlive {
		return s, err
	}
	return &renewalStream{ClientStream: s, renewals: r}, nil
}

// renewalStream assumes that one renewal is under way at a time. etcd's own sessions send without waiting, but no
// checker uses their renewals.
type renewalStream struct {
	grpc.ClientStream
	renewals

	sent atomic.Int64 // when the latest renewal was sent
}

func (s *renewalStream) SendMsg(msg any) error {
	s.sent.Store(int64(s.log.Now()))
	return s.ClientStream.SendMsg(msg)
}

func (s *renewalStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if answer, ok := msg.(*etcdserverpb.LeaseKeepAliveResponse); ok && err == nil && answer.TTL > 0 {
		s.record(answer.ID, time.Duration(s.sent.Load()))
	}
	return err
}
