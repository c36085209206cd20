package fakeetcd

import (
	"context"
	"slices"
	"time"
	_ "unsafe" // for go:linkname

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

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
	w.fail(err)
	w.c.streams = slices.DeleteFunc(w.c.streams, func(o *watchStream) bool { return o == w })
	w.c.srv.watches.remove(func(o *watcher) bool { return o.stream == w })
}

func (w *watchStream) detach() {
	w.c.srv.mu.Lock()
	defer w.c.srv.mu.Unlock()
	w.end(status.FromContextError(w.ctx.Err()).Err())
}

// valCtxCh is the Done channel of the context under every watch stream of the client; it is never closed. The client
// makes it when the program starts, outside any bubble. So a goroutine of the context package that waits on it is not
// durably blocked, and the bubble's clock would never move. A nil channel also means "never done" and needs no such
// goroutine.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

func init() { valCtxCh = nil }

const syncInterval = 100 * time.Millisecond

// watcher is one watch of a stream.
type watcher struct {
	stream   *watchStream
	id       int64
	key, end []byte
	start    int64 // the first revision that was requested; 0: the next one
	minRev   int64 // the first revision that it has not been sent
	unsynced bool  // it starts in the past and waits for the next sync
	prevKV   bool
	filters  []pb.WatchCreateRequest_FilterType
}

func (w *watcher) wants(c Change) bool {
	if c.Rev < w.minRev || !inRange(c.Kv.Key, w.key, w.end) {
		return false
	}
	filter := pb.WatchCreateRequest_NODELETE
	if c.Put {
		filter = pb.WatchCreateRequest_NOPUT
	}
	return !slices.Contains(w.filters, filter)
}

// tell sends the changes that the watcher wants, if there are any.
func (w *watcher) tell(changes []Change, rev int64) {
	resp := &pb.WatchResponse{Header: w.stream.header(rev), WatchId: w.id}
	for _, c := range changes {
		if !w.wants(c) {
			continue
		}
		ev := &mvccpb.Event{Kv: cloned(c.Kv)}
		if !c.Put {
			ev.Type = mvccpb.Event_DELETE
		}
		// etcd reads the previous state when it sends the event: by then it may have been compacted.
		if w.prevKV && c.Rev-1 >= w.stream.c.srv.store.compacted {
			ev.PrevKv = cloned(c.Prev)
		}
		resp.Events = append(resp.Events, ev)
	}
	if len(resp.Events) > 0 {
		w.stream.pushEvents(resp)
	}
}

// hub holds all watchers of the server. Server.mu guards it.
type hub struct {
	srv      *Server
	watchers []*watcher  // in the order of their creation
	timer    *time.Timer // at the next sync; nil when every watcher is synced
}

func (h *hub) add(w *watcher) {
	cur := h.srv.store.rev
	w.minRev = max(w.start, cur+1)
	if w.start != 0 && w.start <= cur {
		w.minRev, w.unsynced = w.start, true
	}
	h.watchers = append(h.watchers, w)
	h.schedule()
	h.srv.signal()
}

func (h *hub) remove(gone func(*watcher) bool) bool {
	n := len(h.watchers)
	h.watchers = slices.DeleteFunc(h.watchers, gone)
	h.srv.signal()
	return len(h.watchers) < n
}

// notify sends one revision to the synced watchers. The others get it from the history at their sync.
func (h *hub) notify(changes []Change) {
	rev := h.srv.store.rev
	for _, w := range h.watchers {
		if w.unsynced {
			continue
		}
		w.tell(changes, rev)
		w.minRev = max(w.minRev, rev+1)
	}
}

func (h *hub) schedule() {
	pending := slices.ContainsFunc(h.watchers, func(w *watcher) bool { return w.unsynced })
	if pending && h.timer == nil && h.srv.life.Err() == nil {
		h.timer = time.AfterFunc(h.srv.untilTick(syncInterval, time.Now().Add(1)), h.sync)
	}
}

// sync sends the watchers that started in the past their backlog, or ends them if that is compacted.
func (h *hub) sync() {
	h.srv.mu.Lock()
	defer h.srv.mu.Unlock()
	h.timer = nil
	if h.srv.life.Err() != nil {
		return
	}
	st := &h.srv.store
	for _, w := range slices.Clone(h.watchers) {
		switch {
		case !w.unsynced:
		case w.minRev < st.compacted:
			w.stream.pushEvents(&pb.WatchResponse{
				Header:          w.stream.header(0), // etcd leaves the revision out here
				WatchId:         w.id,
				Canceled:        true,
				CompactRevision: st.compacted,
			})
			h.remove(func(o *watcher) bool { return o == w })
		default:
			w.tell(st.history, st.rev)
			w.minRev, w.unsynced = st.rev+1, false
		}
	}
}

// create registers a watcher and answers the stream.
func (w *watchStream) create(r *pb.WatchCreateRequest, f Fault) {
	if w.err != nil {
		return // the stream broke while the request was under way
	}
	srv := w.c.srv
	created := &pb.WatchResponse{Header: w.header(srv.store.rev), Created: true}
	key := r.Key
	if len(key) == 0 {
		key = []byte{0}
	}
	switch {
	case r.StartRevision < 0:
		created.WatchId, created.Canceled = clientv3.InvalidWatchID, true
		created.CancelReason = "etcdserver: mvcc: required revision has been compacted"
	case emptyRange(key, r.RangeEnd):
		created.WatchId, created.Canceled = clientv3.InvalidWatchID, true
		created.CancelReason = "mvcc: watcher range is empty"
	default:
		created.WatchId = w.nextID
		w.nextID++
		srv.watches.add(&watcher{
			stream: w, id: created.WatchId, key: key, end: r.RangeEnd, start: r.StartRevision, prevKV: r.PrevKv, filters: r.Filters,
		})
	}
	if f.Lose == Answer {
		w.lost = true // the stream is about to break: later messages do not arrive either
	}
	w.push(created, f.After)
}

func (w *watchStream) cancel(id int64) {
	if w.c.srv.watches.remove(func(o *watcher) bool { return o.stream == w && o.id == id }) {
		w.push(&pb.WatchResponse{Header: w.header(w.c.srv.store.rev), WatchId: id, Canceled: true}, 0)
	}
}

// progress answers only if every watcher of the stream is synced and has started.
func (w *watchStream) progress() {
	srv := w.c.srv
	behind := func(o *watcher) bool { return o.stream == w && (o.unsynced || o.start > srv.store.rev) }
	if !slices.ContainsFunc(srv.watches.watchers, behind) {
		w.push(&pb.WatchResponse{Header: w.header(srv.store.rev), WatchId: clientv3.InvalidWatchID}, 0)
	}
}

func (w *watchStream) pushEvents(resp *pb.WatchResponse) {
	f, _ := w.c.pick(Call{Client: w.c, Method: WatchEvents, Request: resp, Sent: time.Now()})
	if f.OnAnswer != nil && w.c.srv.life.Err() == nil {
		w.c.srv.wg.Go(f.OnAnswer)
	}
	w.push(resp, f.After)
}

func (w *watchStream) header(rev int64) *pb.ResponseHeader {
	h := w.c.srv.header()
	h.Revision = rev
	return h
}
