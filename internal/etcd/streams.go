package etcd

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/leasefence/leasefence/internal/scope"
)

// Streams moves watches off a member that has stopped answering. A watch on a member that is cut off does not fail,
// it falls silent. So all watches share one gRPC stream. When that becomes suspect, all of its watches end, and their
// owners open them again on a new stream, for which the client takes the next endpoint. A stream becomes suspect when
// a caller says so ([Streams.Suspect]), when a probe fails ([Streams.Probe]), and when watches wait to be confirmed and
// none is for too long ([NewStreams]).
type Streams struct {
	id       string
	patience time.Duration

	mu      sync.Mutex // guards the fields below, and the stream's
	n       int64      // the number of streams so far
	stretch int        // how many times the patience the next confirmation may take
	stream  *stream
}

// stream is one gRPC stream of watches, until it becomes suspect.
type stream struct {
	life    context.Context //nolint:containedctx // of the stream's watches, whose contexts are derived from it
	end     context.CancelFunc
	watches int         // that are on the stream or about to be opened
	opening int         // watches that are not confirmed yet
	stuck   *time.Timer // runs while there are any
	waiting time.Time   // when stuck was started
}

// streamNames is the number of names that the streams take in turn. A watch whose caller gives up before the client
// has a connection leaves an empty stream in the client, until a watch of the same name reuses it. A fixed number of
// names bounds these.
const streamNames = 4

// longestStretch times the patience is the longest time that a watch may take to be confirmed.
const longestStretch = 8

// NewStreams names the streams after id, which must be unique among the users of a client. A stream becomes suspect
// if watches wait and the server confirms none of them for patience, less a random part of up to a half. After slow
// confirmations that time is longer, up to eight times.
func NewStreams(id string, patience time.Duration) *Streams {
	s := &Streams{id: id, patience: patience, stretch: 1}
	s.stream = s.next()
	return s
}

// next makes the next stream, without watches.
func (s *Streams) next() *stream {
	name := s.id + "-" + strconv.FormatInt(s.n%streamNames, 10)
	s.n++
	st := new(stream)
	st.life, st.end = context.WithCancel(clientv3.WithRequireLeader(
		metadata.AppendToOutgoingContext(context.Background(), "leasefence-stream", name)))
	st.stuck = time.AfterFunc(time.Hour, func() { s.replace(st, true) })
	st.stuck.Stop()
	return st
}

// Watch returns the context for one watch that the caller is about to open. The context ends with ctx, when the
// stream becomes suspect, or by cancel, which must be called. The watch also ends if its member has no leader. The
// caller must call opened once, when the watch is confirmed or has failed.
//
// The context has none of ctx's values: etcd's client opens a stream for each distinct metadata, and keeps the values
// of the context that opened it.
func (s *Streams) Watch(ctx context.Context) (watch context.Context, opened func(), cancel context.CancelFunc) {
	s.mu.Lock()
	st := s.stream
	st.watches++
	if st.opening++; st.opening == 1 {
		s.wait(st)
	}
	s.mu.Unlock()
	watch, done := scope.Join(st.life, ctx)
	return watch, func() { s.opened(st, watch.Err() == nil) }, func() {
		done()
		s.mu.Lock()
		defer s.mu.Unlock()
		st.watches--
	}
}

// wait starts the time after which st is replaced unless one of its watches is confirmed. s.mu must be held.
func (s *Streams) wait(st *stream) {
	st.waiting = time.Now()
	st.stuck.Reset(Jitter(time.Duration(s.stretch) * s.patience))
}

// Probe tests the stream with one more watch, on key. If the server does not confirm it within limit, the stream
// becomes suspect: the other watches get no events either. So it does if the member has not reached the revision least:
// it lags. And so it does if the server refuses the watch, because the auth token with which the client opened the
// stream has expired: no further watch would be opened on it. But if permission for key is denied, that says nothing of
// the others' keys. Probe returns when the result is known, or at once if the stream has no watches.
func (s *Streams) Probe(ctx context.Context, client *clientv3.Client, key string, limit time.Duration, least int64) {
	s.mu.Lock()
	st, idle := s.stream, s.stream.watches == 0
	s.mu.Unlock()
	if idle {
		return
	}
	watch, done := scope.Join(st.life, ctx)
	defer done()
	silent := time.AfterFunc(limit, func() { s.replace(st, false) })
	defer silent.Stop()
	resp, _ := Next(watch, client.Watch(watch, key,
		clientv3.WithCreatedNotify(), clientv3.WithFilterPut(), clientv3.WithFilterDelete()))
	if err := resp.Err(); err != nil && !Denied(err) || resp.Created && resp.Header.Revision < least {
		s.replace(st, false)
	}
}

// Next returns the next response of a watch with the context ctx. It reports false when the watch or ctx has ended.
// etcd's client may close the channel some time after the end of ctx: it pauses for up to 100 ms before it connects
// again, and it waits while a member that reads nothing has no room for a request.
func Next(ctx context.Context, watch clientv3.WatchChan) (resp clientv3.WatchResponse, ok bool) {
	select {
	case resp, ok = <-watch:
	case <-ctx.Done():
	}
	return resp, ok
}

// opened counts a watch as no longer waiting. A confirmed watch shows that the stream works: the others may wait only
// because the server confirms one after the other. The next ones get more than twice the time that this one took, so
// that a server which stays slow does not end the watches that exist.
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

// replace ends st and makes the next stream, unless st has been replaced before. If stuck, st must also still have
// watches that wait; the next stream then gets twice the time, up to eight times the patience, because the whole
// network may be slow.
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
		st.end()
	}
}

const (
	// probeEvery is the time between two probes of the stream, less a random part of up to a half.
	probeEvery = 5 * time.Second
	// probePatience is how long the first answer may take, less a random part of up to a half; see [NewStreams].
	probePatience = 4 * time.Second
)

// Lookout is the watch stream of a client that all observers in this process share: those who watch locks or
// elections and hold nothing. It probes the stream.
type Lookout struct {
	Conn    *Conn
	Streams *Streams

	end   context.CancelFunc // ends the probes
	ended chan struct{}      // closed when they have ended

	looks map[*Look]struct{} // guarded by Conn.mu
}

// Look is the watch of one observer.
type Look struct {
	Prefix string       // of the keys that it watches
	Seen   atomic.Int64 // the latest revision that its watch has shown; 0: none
}

// LookOut adds an observer to the client's lookout, which it makes if there is none. The observer must call Leave.
func (c *Conn) LookOut(look *Look) *Lookout {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookout == nil {
		ctx, end := context.WithCancel(context.Background()) // the lookout may outlive its first observer
		c.lookout = &Lookout{
			Conn: c, Streams: NewStreams("observe", probePatience),
			end: end, ended: make(chan struct{}), looks: make(map[*Look]struct{}),
		}
		go c.lookout.probe(ctx)
	}
	c.lookout.looks[look] = struct{}{}
	return c.lookout
}

// Leave removes an observer; it may be called again. It must be called before the observer's watch ends: without a watch
// on the stream, a probe that is given up could leave an empty stream in the client, see streamNames. The last observer
// to leave ends the probes, and waits for their end.
func (l *Lookout) Leave(look *Look) {
	l.Conn.mu.Lock()
	_, here := l.looks[look]
	delete(l.looks, look)
	last := here && len(l.looks) == 0
	if last {
		l.Conn.lookout = nil
	}
	l.Conn.mu.Unlock()
	if last {
		l.end()
		<-l.ended
	}
}

// probe checks regularly whether the stream works. A stream on a member that is cut off does not fail, it falls
// silent, and its watches with it.
//
// A probe is one more watch on the stream. The server's progress notifications would show less: none comes while a
// watch is behind or waits for a future revision, as a watch does that the client has resumed on a key without
// changes; before 3.4.25 and 3.5.8 they may run ahead of the events; and each one goes to all watches of the stream.
func (l *Lookout) probe(ctx context.Context) {
	defer close(l.ended)
	timer := time.NewTimer(Jitter(probeEvery))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if !l.sound(ctx) {
			l.Streams.Suspect()
		}
		timer.Reset(Jitter(probeEvery))
	}
}

// sound probes the stream. It reports false if the server refuses the watch, as it does when the auth token of the
// stream has expired, or if the member is behind a revision that the watches have shown: it lags, or was restored
// from a snapshot. If there is no answer, the stream becomes suspect by itself, see [NewStreams]. Unlike
// [Streams.Probe], a denied permission counts as well: the server goes on serving a watch that it has allowed once, so
// an observer learns that its permission is gone when it opens its watch again.
func (l *Lookout) sound(ctx context.Context) bool {
	prefix, seen := l.furthest()
	if prefix == "" {
		return true
	}
	watch, opened, cancel := l.Streams.Watch(ctx)
	defer cancel()
	resp, _ := Next(watch, l.Conn.Client.Watch(watch, prefix, clientv3.WithCreatedNotify()))
	opened()
	return watch.Err() != nil || resp.Created && !resp.Canceled && resp.Header.Revision >= seen
}

// furthest returns the highest revision that a watch has shown, and the prefix of a random one, "" if there is none: the
// server may refuse one prefix and not another. A user with permission to watch a prefix may also watch the key of that
// name.
func (l *Lookout) furthest() (prefix string, rev int64) {
	l.Conn.mu.Lock()
	defer l.Conn.mu.Unlock()
	n := 0
	for look := range l.looks {
		if n++; rand.N(n) == 0 { // each is as likely; a map's order is not that random: the last of two is mostly the same
			prefix = look.Prefix
		}
		rev = max(rev, look.Seen.Load())
	}
	return prefix, rev
}
