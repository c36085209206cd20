package differential

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// party is a server under comparison, with what its answers so far have shown.
type party struct {
	ctx           context.Context //nolint:containedctx // of all calls and watches
	client        *clientv3.Client
	openKeepAlive func(ctx context.Context, endpoint string) (pb.Lease_LeaseKeepAliveClient, error)
	base, rev     int64              // the revision at the begin of the program, and the last one seen
	leases        []clientv3.LeaseID // all leases that were granted
	watches       []*watch           // the open watches
	opened        int                // the number of watches that were opened
	now           step
}

type watch struct {
	n      int
	ctx    context.Context //nolint:containedctx // with it the client finds the watch's stream
	cancel context.CancelFunc
	ch     clientv3.WatchChan
	from   int64
	seen   int64 // all events up to this revision have arrived
}

// newParty starts with an empty, compacted store. Its last few revisions are the same for every party, except their
// numbers.
func newParty(
	ctx context.Context, t *testing.T, client *clientv3.Client,
	open func(context.Context, string) (pb.Lease_LeaseKeepAliveClient, error),
) *party {
	t.Helper()
	for range 3 {
		_, err := client.Put(ctx, "a", "")
		require.NoError(t, err)
	}
	gone, err := client.Delete(ctx, "a") // a watch may start with this event
	require.NoError(t, err)
	rev := gone.Header.Revision
	_, err = client.Compact(ctx, rev)
	require.NoError(t, err)
	return &party{ctx: ctx, client: client, openKeepAlive: open, base: rev, rev: rev}
}

// record adds the answer to a call, or its error, to the step.
func (y *party) record(answer proto.Message, err error) {
	if err != nil {
		y.fail(err)
		return
	}
	if h, ok := answer.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		y.rev = max(y.rev, h.GetHeader().GetRevision())
	}
	y.now.answers = append(y.now.answers, y.text(answer))
}

func (y *party) fail(err error) {
	code := status.Code(err)
	if e, ok := errors.AsType[interface {
		error
		Code() codes.Code
	}](err); ok {
		code = e.Code()
	}
	y.now.err, _, _ = strings.Cut(err.Error(), " (") // without the sizes of a message that is too large
	y.now.answers = append(y.now.answers, fmt.Sprintf("%v: %v", code, y.now.err))
}

// settle waits until all events up to the present have arrived at every watch.
func (y *party) settle() {
	var open []*watch
	for _, w := range y.watches {
		if w.from > y.rev || w.seen == y.rev || y.catchUp(w) { // etcd answers no progress request before a watch has begun
			open = append(open, w)
		} else {
			w.cancel()
		}
	}
	y.watches = open
}

// patience is how long a watch may be silent, in the bubble's time or in real time, before this is recorded as its
// answer.
const patience = time.Minute

// catchUp waits for the events up to the present, and reports whether the watch continues.
func (y *party) catchUp(w *watch) bool {
	for late := time.Now().Add(patience); time.Now().Before(late); {
		if err := y.client.RequestProgress(w.ctx); err != nil {
			y.fail(err)
			return false
		}
		again := time.NewTimer(10 * time.Millisecond) // a watch that lags behind does not answer
		for waiting := true; waiting; {
			select {
			case resp, ok := <-w.ch:
				switch {
				case !ok:
					y.event(w, "closed")
					return false
				case resp.IsProgressNotify() && resp.Header.Revision >= y.rev:
					again.Stop()
					w.seen = y.rev
					return true
				case !resp.IsProgressNotify():
					y.response(w, resp)
				}
			case <-again.C:
				waiting = false
			}
		}
	}
	y.event(w, "silent")
	return false
}

func (y *party) response(w *watch, r clientv3.WatchResponse) {
	m := &pb.WatchResponse{
		Header: r.Header, Events: r.Events, CompactRevision: r.CompactRevision, Canceled: r.Canceled, Created: r.Created,
	}
	if err := r.Err(); err != nil {
		m.CancelReason, y.now.err = err.Error(), err.Error()
	}
	y.event(w, y.text(m))
}

func (y *party) event(w *watch, text string) {
	y.now.answers = append(y.now.answers, fmt.Sprintf("watch %d: %s", w.n, text))
}

// stop cancels a watch.
func (y *party) stop(i int) {
	w := y.watches[i]
	w.cancel()
	for resp := range w.ch {
		if !resp.IsProgressNotify() { // skip the answer to a progress request that was repeated too early
			y.response(w, resp)
		}
	}
	y.event(w, "closed")
	y.watches = append(y.watches[:i:i], y.watches[i+1:]...)
}

// text formats a message without what differs between servers: revisions count from the begin of the program, and
// leases are numbered in the order of their grants.
func (y *party) text(m proto.Message) string {
	m = proto.Clone(m)
	y.adjust(m.ProtoReflect())
	return prototext.MarshalOptions{}.Format(m)
}

func (y *party) adjust(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch name := string(f.Name()); {
		case slices.Contains([]string{"cluster_id", "member_id", "raft_term", "watch_id"}, name):
			m.Clear(f)
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				y.adjust(v.List().Get(i).Message())
			}
		case f.IsList():
		case f.Message() != nil:
			y.adjust(v.Message())
		case f.Kind() == protoreflect.BytesKind && len(v.Bytes()) > 100:
			m.Set(f, protoreflect.ValueOfBytes(fmt.Appendf(nil, "<%d bytes>", len(v.Bytes()))))
		case strings.Contains(name, "revision") && v.Int() > 0:
			m.Set(f, protoreflect.ValueOfInt64(v.Int()-y.base+1e6)) // 0 means none
		case name == "lease" || name == "ID":
			if i := slices.Index(y.leases, clientv3.LeaseID(v.Int())); i >= 0 {
				m.Set(f, protoreflect.ValueOfInt64(-1-int64(i)))
			}
		}
		return true
	})
}
