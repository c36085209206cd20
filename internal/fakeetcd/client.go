package fakeetcd

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNotSupported is returned by the calls that the fake does not have.
var ErrNotSupported = errors.New("fakeetcd: not supported")

// maxMessageBytes is the default of clientv3.Config.MaxCallSendMsgSize.
const maxMessageBytes = 2 << 20

// Client is a client with a network of its own. Its methods are safe for concurrent use.
type Client struct {
	*clientv3.Client

	// KeepAliveEndpoints are the endpoints to which keep-alive streams can be opened; set them before the first use.
	KeepAliveEndpoints []string

	srv  *Server
	life context.Context //nolint:containedctx // ends with the client's Close, or the server's
	end  context.CancelFunc

	// Guarded by the server's mutex.
	rules      []*rule
	edit       func(m Method, answer any)
	cut        bool
	restored   chan struct{}      // closed at the end of the present cut
	keepAlives []*keepAliveStream // all that were opened, without those of KeepAliveOnce
	streams    []*watchStream
}

// NewClient makes a client, which works until its Close or the server's. As for a real client, the end of ctx ends only
// what uses the client's own context.
func (s *Server) NewClient(ctx context.Context) *Client {
	cc := clientv3.NewCtxClient(ctx)
	c := &Client{Client: cc, KeepAliveEndpoints: []string{"1", "2", "3"}, srv: s}
	c.life, c.end = context.WithCancel(s.life)
	none := unsupportedConn{}
	kv := kvClient{KVClient: pb.NewKVClient(none), c: c}
	cc.KV = directKV{clientv3.NewKVFromKVClient(kv, cc), kv}
	cc.Lease = keepAliveOpener{clientv3.NewLeaseFromLeaseClient(leaseClient{pb.NewLeaseClient(none), c}, cc, time.Second), c} // the timeout that a zero DialTimeout gives
	cc.Watcher = closingWatcher{clientv3.NewWatchFromWatchClient(watchClient{c}, cc), c}
	cc.Cluster = clientv3.NewClusterFromClusterClient(pb.NewClusterClient(none), cc)
	cc.Auth = clientv3.NewAuthFromAuthClient(pb.NewAuthClient(none), cc)
	cc.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(pb.NewMaintenanceClient(none), cc)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Cut turns the client's link into a black hole: all requests, answers and events, including those under way, are held
// back until Restore. A request whose caller gives up before that is dropped, unless its fault has [Fault.Late].
func (c *Client) Cut() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if !c.cut {
		c.cut, c.restored = true, make(chan struct{})
	}
}

// Restore ends a cut: everything that was held back arrives now.
func (c *Client) Restore() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if c.cut {
		c.cut = false
		close(c.restored)
	}
}

// EditAnswers makes the client's answers pass through f, which may change them, as the server gives them. They are
// protobuf responses, such as *pb.TxnResponse. f must not call the server or a client.
func (c *Client) EditAnswers(f func(m Method, answer any)) {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	c.edit = f
}

// Calls returns what this client has sent so far, oldest first. Any means every method.
func (c *Client) Calls(m Method) []Call {
	return c.srv.callsOf(func(call *Call) bool { return call.Client == c && (m == Any || call.Method == m) })
}

// BreakWatches ends the client's watch streams with err, and drops events that were not delivered yet. After
// [ErrUnavailable] the real client opens a new stream and resumes its watches; after any other error it closes their
// channels. During a cut it notices neither.
func (c *Client) BreakWatches(err error) {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	for _, w := range slices.Clone(c.streams) {
		w.end(err)
	}
}

// closingWatcher ends c.life at the client's Close, which closes its Watcher.
type closingWatcher struct {
	clientv3.Watcher
	c *Client
}

func (w closingWatcher) Close() error {
	w.c.end()
	return w.Watcher.Close()
}

// unary is a call with one request and one answer.
func unary[T any](ctx context.Context, c *Client, m Method, req any, act func() (*T, error)) (*T, error) {
	select {
	case <-ctx.Done(): // like gRPC, which does not call Err before
		return nil, status.FromContextError(ctx.Err()).Err()
	default:
	}
	if n := sizeOf(req); n > maxMessageBytes {
		return nil, status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", n, maxMessageBytes)
	}
	done := make(chan outcome[T], 1)
	transmit(ctx, c, "", m, req,
		func(Fault) (*T, error) { return act() },
		func(o outcome[T]) { done <- o })
	select {
	case o := <-done: // an answer that has come counts even if the context has just ended
		return o.msg, o.err
	default:
	}
	select {
	case o := <-done:
		return o.msg, o.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-c.life.Done():
		return nil, errClosing
	}
}

type kvClient struct {
	pb.KVClient // RangeStream
	c           *Client
}

func (k kvClient) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return unary(ctx, k.c, Get, r, func() (*pb.RangeResponse, error) {
		if err := validateRange(r); err != nil {
			return nil, err
		}
		resp, err := k.c.srv.store.read(r, k.c.srv.store.rev)
		if err != nil {
			return nil, err
		}
		resp.Header = k.c.srv.header()
		return resp, nil
	})
}

func (k kvClient) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return unary(ctx, k.c, Put, r, func() (*pb.PutResponse, error) {
		if err := validatePut(r); err != nil {
			return nil, err
		}
		if sizeOf(r) > maxRequestBytes {
			return nil, rpctypes.ErrGRPCRequestTooLarge
		}
		t := &tx{srv: k.c.srv}
		if err := t.checkPut(r); err != nil {
			return nil, err
		}
		resp := t.put(r)
		t.commit()
		resp.Header = k.c.srv.header()
		return resp, nil
	})
}

func (k kvClient) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return unary(ctx, k.c, Delete, r, func() (*pb.DeleteRangeResponse, error) {
		if err := validateDelete(r); err != nil {
			return nil, err
		}
		t := &tx{srv: k.c.srv}
		resp := t.deleteRange(r)
		t.commit()
		resp.Header = k.c.srv.header()
		return resp, nil
	})
}

// directKV also receives the transactions of a line as messages; see etcd.Direct.
type directKV struct {
	clientv3.KV
	direct pb.KVClient
}

func (k directKV) Direct() pb.KVClient { return k.direct }

func (k kvClient) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return unary(ctx, k.c, Txn, r, func() (*pb.TxnResponse, error) {
		if err := validateTxn(r); err != nil {
			return nil, err
		}
		t := &tx{srv: k.c.srv}
		p := t.plan(r)
		if err := t.check(p); err != nil {
			return nil, err
		}
		resp := t.run(p)
		t.commit()
		resp.Header = k.c.srv.header()
		return resp, nil
	})
}

func (k kvClient) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return unary(ctx, k.c, Compact, r, func() (*pb.CompactionResponse, error) {
		if err := k.c.srv.store.compact(r.Revision); err != nil {
			return nil, err
		}
		return &pb.CompactionResponse{Header: k.c.srv.header()}, nil
	})
}

// unsupportedConn is the connection of the services that are not faked.
type unsupportedConn struct{}

func (unsupportedConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return ErrNotSupported
}

func (unsupportedConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, ErrNotSupported
}

// stream is the client's end of a gRPC stream, without Send.
type stream[T any] struct {
	grpc.ClientStream // nil: its other methods are not used

	ctx context.Context //nolint:containedctx // grpc.ClientStream returns it from Context
	c   *Client

	// Guarded by the server's mutex.
	items []item[T]     // sent by the server and not received by the client
	err   error         // the end of the stream
	lost  bool          // no further messages get through, only the end
	wake  chan struct{} // of capacity 1: wakes the one reader
}

type item[T any] struct {
	msg *T
	due time.Time // when it arrives
}

func newStream[T any](ctx context.Context, c *Client) stream[T] {
	return stream[T]{ctx: ctx, c: c, wake: make(chan struct{}, 1)}
}

// push sends a message that is under way for d. The stream keeps the order, so a message also waits for those before
// it.
func (s *stream[T]) push(msg *T, d time.Duration) {
	if s.err != nil || s.lost {
		return
	}
	s.items = append(s.items, item[T]{msg, time.Now().Add(d)})
	s.signal()
}

func (s *stream[T]) fail(err error) {
	if s.err != nil {
		return
	}
	s.items, s.err = nil, err
	s.signal()
}

func (s *stream[T]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns what can be received now, or nil and what to wait for: the end of a cut, or a duration (0: neither).
func (s *stream[T]) next() (got *outcome[T], restored <-chan struct{}, due time.Duration) {
	s.c.srv.mu.Lock()
	defer s.c.srv.mu.Unlock()
	switch {
	case s.c.cut:
		return nil, s.c.restored, 0
	case s.err != nil:
		return &outcome[T]{err: s.err}, nil, 0
	case len(s.items) == 0:
		return nil, nil, 0
	}
	if d := time.Until(s.items[0].due); d > 0 {
		return nil, nil, d
	}
	msg := s.items[0].msg
	s.items = s.items[1:]
	return &outcome[T]{msg: msg}, nil, 0
}

// Recv implements [pb.Watch_WatchClient] and [pb.Lease_LeaseKeepAliveClient].
func (s *stream[T]) Recv() (*T, error) {
	for {
		if err := s.ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		got, restored, due := s.next()
		if got != nil {
			return got.msg, got.err
		}
		var timer <-chan time.Time
		if due > 0 {
			timer = time.After(due)
		}
		select {
		case <-s.wake:
		case <-restored:
		case <-timer:
		case <-s.ctx.Done():
		case <-s.c.life.Done():
			return nil, errClosing
		}
	}
}

func (s *stream[T]) Context() context.Context { return s.ctx }
func (s *stream[T]) CloseSend() error         { return nil }
