package queue

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/leasefence/leasefence/internal/retry"
)

// Streams keeps watches off a sick endpoint. A watch on a member that is cut off does not fail, it falls silent.
// So all watches stand on one stream, and when that becomes suspect every one of them ends, to be opened again on
// a new stream, for which the client takes the next endpoint. It becomes suspect when somebody says so, who has
// seen an endpoint not answer, and when watches wait to be confirmed and none is for some time.
type Streams struct {
	name *name

	mu       sync.Mutex    // guards the fields below, and the stream's
	patience time.Duration // for the next confirmation
	initial  time.Duration
	stream   *stream
}

// stream is one gRPC stream of watches, from its opening until it is suspect.
type stream struct {
	n       int64
	end     context.Context //nolint:containedctx // it ends the watches of this stream, nothing else
	cancel  context.CancelFunc
	opening int         // watches that are not confirmed yet
	stuck   *time.Timer // runs while there are any
}

// streamNames is how many names the streams have, which they take in turn. A watch whose caller gives up before the
// client has a connection leaves an empty stream in the client for good, until a watch of the same name takes it over.
const streamNames = 4

// NewStreams names the streams after id, which no other user of the same client may use. A stream on which no
// watch is confirmed for the time of patience is suspect.
func NewStreams(id string, patience time.Duration) *Streams {
	return newStreams(&name{id: id}, patience)
}

func newStreams(n *name, patience time.Duration) *Streams {
	s := &Streams{name: n, patience: patience, initial: patience}
	s.stream = s.next()
	return s
}

// next is the next stream, which has no watches.
func (s *Streams) next() *stream {
	st := &stream{n: s.name.next.Add(1) - 1}
	st.end, st.cancel = context.WithCancel(context.Background())
	st.stuck = time.AfterFunc(s.patience, func() { s.giveUp(st) })
	st.stuck.Stop()
	return st
}

// Watch is a context for one watch that is about to be opened: it ends with ctx, when the stream becomes suspect,
// or by cancel, which must be called. A member without a leader ends the watch too. Opened must be called when
// the watch is confirmed or has failed.
//
// The context has none of ctx's values: etcd's client opens a stream for each distinct metadata, and keeps the
// values of the context that opened it.
func (s *Streams) Watch(ctx context.Context) (watch context.Context, opened func(), cancel context.CancelFunc) {
	s.mu.Lock()
	st := s.stream
	if st.opening++; st.opening == 1 {
		st.stuck.Reset(retry.Jitter(s.patience))
	}
	s.mu.Unlock()

	name := s.name.id + "-" + strconv.FormatInt(st.n%streamNames, 10)
	watch = metadata.AppendToOutgoingContext(context.Background(), "leasefence-stream", name)
	watch, cancelWatch := context.WithCancel(clientv3.WithRequireLeader(watch))
	stopCaller := context.AfterFunc(ctx, cancelWatch)
	stopStream := context.AfterFunc(st.end, cancelWatch)
	return watch, func() { s.opened(st, watch.Err() == nil) }, func() {
		stopCaller()
		stopStream()
		cancelWatch()
	}
}

// opened takes a watch off those that wait. A confirmed one shows that the stream is sound: others may wait only
// because the server confirms one after the other.
func (s *Streams) opened(st *stream, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.opening--
	if confirmed {
		s.patience = s.initial
	}
	switch {
	case st.opening == 0:
		st.stuck.Stop()
	case confirmed:
		st.stuck.Reset(retry.Jitter(s.patience))
	}
}

// giveUp makes st suspect if it is the present stream and still waited for. The next one gets twice the time, up
// to eight times: the whole network may be slow.
func (s *Streams) giveUp(st *stream) {
	s.mu.Lock()
	stuck := s.stream == st && st.opening > 0
	if stuck {
		s.patience = min(2*s.patience, 8*s.initial)
		s.stream = s.next()
	}
	s.mu.Unlock()
	if stuck {
		st.cancel()
	}
}

// Suspect ends every watch on the present stream.
func (s *Streams) Suspect() {
	s.mu.Lock()
	st := s.stream
	s.stream = s.next()
	st.stuck.Stop()
	s.mu.Unlock()
	st.cancel()
}
