package queue

import (
	"context"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Streams keeps watches off a sick endpoint. A watch on a member that is cut off does not fail, it falls
// silent. So whoever notices that an endpoint does not answer calls Suspect: every watch then ends, and opens
// again on a new stream, for which the client takes the next endpoint.
type Streams struct {
	id string

	mu     sync.Mutex // guards the fields below
	n      int
	epoch  context.Context //nolint:containedctx // it ends the watches of one epoch, nothing else
	cancel context.CancelFunc
}

// NewStreams names the streams after id, which no other user of the same client may use.
func NewStreams(id string) *Streams {
	s := &Streams{id: id}
	s.epoch, s.cancel = context.WithCancel(context.Background())
	return s
}

// Context is a context for one watch: it ends with ctx, with the next Suspect, or by cancel, which must be
// called. A member without a leader ends the watch too. It has none of ctx's values: etcd's client opens a
// stream for each distinct metadata, and keeps the values of the context that opened it.
func (s *Streams) Context(ctx context.Context) (watch context.Context, cancel context.CancelFunc) {
	s.mu.Lock()
	epoch, n := s.epoch, s.n
	s.mu.Unlock()

	watch = metadata.AppendToOutgoingContext(context.Background(), "leasefence-stream", s.id+"-"+strconv.Itoa(n))
	watch, cancelWatch := context.WithCancel(clientv3.WithRequireLeader(watch))
	stopCaller := context.AfterFunc(ctx, cancelWatch)
	stopEpoch := context.AfterFunc(epoch, cancelWatch)
	return watch, func() {
		stopCaller()
		stopEpoch()
		cancelWatch()
	}
}

// Suspect ends every watch on the present stream.
func (s *Streams) Suspect() {
	s.mu.Lock()
	cancel := s.cancel
	s.n++
	s.epoch, s.cancel = context.WithCancel(context.Background())
	s.mu.Unlock()
	cancel()
}
