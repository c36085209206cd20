package fakeetcd

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// inbox holds the messages that the server has sent on a stream and the client has not received. The server's mutex
// guards it.
type inbox[T any] struct {
	c     *Client
	items []item[T]
	err   error         // the end of the stream
	lost  bool          // no further messages get through, only the end
	wake  chan struct{} // of capacity 1: wakes the one reader
}

type item[T any] struct {
	msg *T
	due time.Time // when it arrives
}

// push sends a message that is under way for d. The stream keeps the order, so a message also waits for those before
// it.
func (in *inbox[T]) push(msg *T, d time.Duration) {
	if in.ended() || in.lost {
		return
	}
	in.items = append(in.items, item[T]{msg, time.Now().Add(d)})
	in.signal()
}

func (in *inbox[T]) fail(err error) {
	if in.ended() {
		return
	}
	in.items, in.err = nil, err
	in.signal()
}

func (in *inbox[T]) ended() bool { return in.err != nil }

func (in *inbox[T]) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// next returns what can be received now, or nil and what to wait for: the end of a cut, or a duration (0: neither).
func (in *inbox[T]) next() (got *outcome[T], restored <-chan struct{}, due time.Duration) {
	in.c.srv.mu.Lock()
	defer in.c.srv.mu.Unlock()
	switch {
	case in.c.cut:
		return nil, in.c.restored, 0
	case in.ended():
		return &outcome[T]{err: in.err}, nil, 0
	case len(in.items) == 0:
		return nil, nil, 0
	}
	if d := time.Until(in.items[0].due); d > 0 {
		return nil, nil, d
	}
	msg := in.items[0].msg
	in.items = in.items[1:]
	return &outcome[T]{msg: msg}, nil, 0
}

func (in *inbox[T]) recv(ctx context.Context) (*T, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		got, restored, due := in.next()
		if got != nil {
			return got.msg, got.err
		}
		var timer <-chan time.Time
		if due > 0 {
			timer = time.After(due)
		}
		select {
		case <-in.wake:
		case <-restored:
		case <-timer:
		case <-ctx.Done():
		case <-in.c.life.Done():
			return nil, errClosing
		}
	}
}

// stream is the client's end of a gRPC stream, without Send.
type stream[T any] struct {
	grpc.ClientStream // nil: its other methods are not used

	ctx context.Context //nolint:containedctx // grpc.ClientStream returns it from Context
	c   *Client
	in  inbox[T]
}

func newStream[T any](ctx context.Context, c *Client) stream[T] {
	return stream[T]{ctx: ctx, c: c, in: inbox[T]{c: c, wake: make(chan struct{}, 1)}}
}

func (s *stream[T]) Recv() (*T, error)        { return s.in.recv(s.ctx) }
func (s *stream[T]) Context() context.Context { return s.ctx }
func (s *stream[T]) CloseSend() error         { return nil }

type watchClient struct{ c *Client }

// Watch opens a stream. As in gRPC, that takes no message to the server.
func (w watchClient) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	st := &watchStream{stream: newStream[pb.WatchResponse](ctx, w.c)}
	w.c.srv.mu.Lock()
	defer w.c.srv.mu.Unlock()
	w.c.streams = append(w.c.streams, st)
	context.AfterFunc(ctx, st.detach)
	return st, nil
}

type watchStream struct {
	stream[pb.WatchResponse]
	nextID int64 // guarded by the server's mutex
}

func (w *watchStream) Send(r *pb.WatchRequest) error {
	switch {
	case r.GetCreateRequest() != nil:
		create := r.GetCreateRequest()
		transmit(w.ctx, w.c, "", Watch, create,
			func(f Fault) (*pb.WatchRequest, error) { w.create(create, f); return r, nil },
			func(o outcome[pb.WatchRequest]) {
				if o.err != nil {
					w.end(o.err)
				}
			})
	case r.GetCancelRequest() != nil:
		// It arrives at once, without faults: the client no longer uses the watch.
		w.c.srv.mu.Lock()
		defer w.c.srv.mu.Unlock()
		w.cancel(r.GetCancelRequest().WatchId)
	case r.GetProgressRequest() != nil:
		w.c.srv.mu.Lock()
		defer w.c.srv.mu.Unlock()
		w.progress()
	}
	return nil
}

// end breaks the stream. The caller holds the server's mutex.
func (w *watchStream) end(err error) {
	w.in.fail(err)
	w.c.streams = slices.DeleteFunc(w.c.streams, func(o *watchStream) bool { return o == w })
	w.c.srv.watches.remove(func(o *watcher) bool { return o.stream == w })
}

func (w *watchStream) detach() {
	w.c.srv.mu.Lock()
	defer w.c.srv.mu.Unlock()
	w.end(status.FromContextError(w.ctx.Err()).Err())
}
