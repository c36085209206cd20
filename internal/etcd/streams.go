package etcd

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Streams keeps watches off a sick endpoint. A watch on a member that is cut off does not fail, it falls silent.
// So all watches stand on one stream, and when that becomes suspect every one of them ends, to be opened again on
// a new stream, for which the client takes the next endpoint. It becomes suspect when somebody says so, when a probe finds
// it silent, and when watches wait to be confirmed and none is for some time.
type Streams struct {
	id       string
	patience time.Duration

	mu      sync.Mutex // guards the fields below, and the stream's
	n       int64      // of streams so far
	stretch int        // of the patience for the next confirmation
	stream  *stream
}

// stream is one gRPC stream of watches, from its opening until it is suspect.
type stream struct {
	n       int64
	end     context.Context //nolint:containedctx // it ends the watches of this stream, nothing else
	watches int             // that stand on it or are about to
	cancel  context.CancelFunc
	opening int         // watches that are not confirmed yet
	stuck   *time.Timer // runs while there are any
	waiting time.Time   // since when it runs
}

// streamNames is how many names the streams have, which they take in turn. A watch whose caller gives up before the
// client has a connection leaves an empty stream in the client until a watch of the same name takes it over.
const streamNames = 4

// longestStretch is how many times the patience a watch may take to be confirmed.
const longestStretch = 8

// NewStreams names the streams after id, which no other user of the same client may use. If the server confirms no watch on a
// stream for the time of patience, less a random part of up to a half, the stream is suspect.
func NewStreams(id string, patience time.Duration) *Streams {
	s := &Streams{id: id, patience: patience, stretch: 1}
	s.stream = s.next()
	return s
}

// next is the next stream, which has no watches.
func (s *Streams) next() *stream {
	st := &stream{n: s.n}
	s.n++
	st.end, st.cancel = context.WithCancel(context.Background())
	st.stuck = time.AfterFunc(time.Hour, func() { s.replace(st, true) })
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
	st.watches++
	if st.opening++; st.opening == 1 {
		s.wait(st)
	}
	s.mu.Unlock()
	watch, end := s.on(ctx, st)
	return watch, func() { s.opened(st, watch.Err() == nil) }, func() {
		end()
		s.mu.Lock()
		defer s.mu.Unlock()
		st.watches--
	}
}

// wait has st given up if none of its watches is confirmed in time. s.mu must be held.
func (s *Streams) wait(st *stream) {
	st.waiting = time.Now()
	st.stuck.Reset(Jitter(time.Duration(s.stretch) * s.patience))
}

// on is a context for a watch on st.
func (s *Streams) on(ctx context.Context, st *stream) (watch context.Context, cancel context.CancelFunc) {
	name := s.id + "-" + strconv.FormatInt(st.n%streamNames, 10)
	watch = metadata.AppendToOutgoingContext(context.Background(), "leasefence-stream", name)
	watch, cancelWatch := context.WithCancel(clientv3.WithRequireLeader(watch))
	stopCaller := context.AfterFunc(ctx, cancelWatch)
	stopStream := context.AfterFunc(st.end, cancelWatch)
	return watch, func() {
		stopCaller()
		stopStream()
		cancelWatch()
	}
}

// Probe opens one more watch, on key and beside the others, and makes the stream suspect if the server says nothing to that
// for limit: neither does it tell the others anything then. It returns when that is known, and at once while no watch
// stands on the stream.
func (s *Streams) Probe(ctx context.Context, client *clientv3.Client, key string, limit time.Duration) {
	s.mu.Lock()
	st, idle := s.stream, s.stream.watches == 0
	s.mu.Unlock()
	if idle {
		return
	}
	watch, cancel := s.on(ctx, st)
	defer cancel()
	silent := time.AfterFunc(limit, func() { s.replace(st, false) })
	defer silent.Stop()
	client.Watch(watch, key, clientv3.WithFilterPut(), clientv3.WithFilterDelete())
}

// opened takes a watch off those that wait. A confirmed one shows that the stream is sound: others may wait only
// because the server confirms one after the other. The next ones get more than twice the time that it took: a server that is
// slow, and stays so, costs nobody a watch that exists.
func (s *Streams) opened(st *stream, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.opening--
	if confirmed {
		s.stretch = min(1+int(2*time.Since(st.waiting)/s.patience), longestStretch)
	}
	switch {
	case st.opening == 0:
		st.stuck.Stop()
	case confirmed:
		s.wait(st)
	}
}

// Suspect ends every watch on the present stream.
func (s *Streams) Suspect() {
	s.mu.Lock()
	st := s.stream
	s.mu.Unlock()
	s.replace(st, false)
}

// replace ends st, unless it is not the present stream any more. If it is stuck, and still waited for, the next one gets twice
// the time, up to eight times: the whole network may be slow.
func (s *Streams) replace(st *stream, stuck bool) {
	s.mu.Lock()
	present := s.stream == st && (!stuck || st.opening > 0)
	if present {
		if stuck {
			s.stretch = min(2*s.stretch, longestStretch)
		}
		s.stream = s.next()
		st.stuck.Stop()
	}
	s.mu.Unlock()
	if present {
		st.cancel()
	}
}
