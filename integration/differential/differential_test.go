package differential

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

var (
	seedFlag = flag.Uint64("seed", 0, "repeat the run of this `seed`")
	programs = flag.Int("programs", 80, "run `n` sequences of calls")
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// The fake answers as etcd does.
func TestFake(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	r := rand.New(rand.NewPCG(seed, 0))
	client := etcdtest.Start(t, etcdtest.Options{}).Client(t)
	drawn := make(map[string]int)
	for range *programs {
		p := make(program, 60)
		for i := range p {
			p[i] = r.Uint64()
		}
		fake, etcd := p.onFake(t), p.onEtcd(t, client)
		if at := firstDifference(fake, etcd); at >= 0 {
			p = p[:at+1].shrunk(func(p program) bool { return firstDifference(p.onFake(t), p.onEtcd(t, client)) >= 0 })
			fake, etcd = p.onFake(t), p.onEtcd(t, client)
		}
		require.Equal(t, list(etcd, answers), list(fake, answers), "seed %d; the calls are\n%s", seed, list(fake, requests))
		for _, s := range etcd {
			drawn[s.err]++
		}
	}
	for _, err := range errorsToDraw {
		require.Positive(t, drawn[err], "no call has drawn the error %q; seed %d, errors drawn: %v", err, seed, drawn)
	}
}

// errorsToDraw are the errors that the calls must draw, so that a change does not narrow the choice of calls unnoticed.
var errorsToDraw = []string{
	"etcdserver: key is not provided",
	"etcdserver: key not found",
	"etcdserver: value is provided",
	"etcdserver: lease is provided",
	"etcdserver: invalid sort option",
	"etcdserver: duplicate key given in txn request",
	"etcdserver: too many operations in txn request",
	"etcdserver: request is too large",
	"etcdserver: requested lease not found",
	"etcdserver: too large lease TTL",
	"etcdserver: mvcc: required revision has been compacted",
	"etcdserver: mvcc: required revision is a future revision",
	"mvcc: watcher range is empty",
	"rpc error: code = ResourceExhausted desc = trying to send message larger than max",
}

// program is a sequence of calls, one for each number. A call follows from its number and from what the party knows by
// then, so any part of a program is a program too.
type program []uint64

// run makes the calls and returns each with its answers.
func (p program) run(y *party, requests func() []string) (trace []step) {
	for _, seed := range p {
		y.now = step{}
		y.call(dice{rand.New(rand.NewPCG(seed, 0))})
		y.settle()
		y.now.requests = requests()
		trace = append(trace, y.now)
	}
	return trace
}

// onFake runs the program on a new fake.
func (p program) onFake(t *testing.T) (trace []step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		defer srv.Close()
		client := srv.NewClient(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		y := newParty(ctx, t, client.Client, client.Lease.(etcd.Opener).OpenKeepAlive)
		seen := len(client.Calls(fakeetcd.Any))
		trace = p.run(y, func() (requests []string) {
			for _, c := range client.Calls(fakeetcd.Any)[seen:] {
				seen++
				requests = append(requests, c.Method.String()+" "+y.text(c.Request.(proto.Message)))
			}
			return requests
		})
		cancel()
		synctest.Wait() // the client's Watcher may deadlock if it is closed before it has finished a watch that ended
	})
	return trace
}

// onEtcd runs the program on a real etcd, which all programs use one after the other.
func (p program) onEtcd(t *testing.T, client *clientv3.Client) []step {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leases, err := client.Leases(ctx)
	require.NoError(t, err)
	for _, l := range leases.Leases {
		_, err := client.Revoke(ctx, l.ID)
		require.NoError(t, err)
	}
	_, err = client.Delete(ctx, "\x00", clientv3.WithFromKey())
	require.NoError(t, err)
	y := newParty(ctx, t, client, func(ctx context.Context, _ string) (pb.Lease_LeaseKeepAliveClient, error) {
		return pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
	})
	return p.run(y, func() []string { return nil })
}

// shrunk drops calls as long as the rest still fails.
func (p program) shrunk(fails func(program) bool) program {
	for size := (len(p) + 1) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(p); {
			if rest := slices.Concat(p[:i], p[i+size:]); fails(rest) {
				p = rest
			} else {
				i += size
			}
		}
	}
	return p
}

// step is one call with its answers.
type step struct {
	requests []string // as the fake got them
	answers  []string // to the call, and then the events that it caused
	err      string   // the text of the error among them
}

func firstDifference(a, b []step) int {
	for i := range a {
		if !slices.Equal(a[i].answers, b[i].answers) {
			return i
		}
	}
	return -1
}

// list formats a trace for an error.
func list(trace []step, of func(step) []string) string {
	var b strings.Builder
	for i, s := range trace {
		fmt.Fprintf(&b, "%d. %s\n", i+1, strings.Join(of(s), "\n   "))
	}
	return b.String()
}

func answers(s step) []string { return s.answers }

func requests(s step) []string { return s.requests }

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
