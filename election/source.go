package election

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

const (
	// probeEvery is how often the stream of the watches is probed, less a random part of up to a half.
	probeEvery = 5 * time.Second
	// probePatience is how long the first answer may take, less a random part of up to a half; see etcd.Streams.
	probePatience = 4 * time.Second
)

// sources are those of this process, by client.
var sources struct {
	mu sync.Mutex // guards the field below, and those of sources and hubs that say so
	of map[*clientv3.Client]*source
}

// source is all that is observed through one client: a hub for each name, on one stream of watches.
type source struct {
	conn    *etcd.Conn
	streams *etcd.Streams
	end     context.CancelFunc // of the probes
	ended   chan struct{}

	hubs      map[string]*hub // by prefix; guarded by sources.mu
	observers int             // guarded by sources.mu
}

// join returns the hub of a prefix to one more observer, which must leave it, and whether it is new: it will not have
// read anything before.
func join(client *clientv3.Client, prefix string) (h *hub, isNew bool) {
	sources.mu.Lock()
	defer sources.mu.Unlock()
	s := sources.of[client]
	if s == nil {
		s = newSource(client)
		if sources.of == nil {
			sources.of = make(map[*clientv3.Client]*source)
		}
		sources.of[client] = s
	}
	h = s.hubs[prefix]
	if isNew = h == nil; isNew {
		h = newHub(s, prefix)
		s.hubs[prefix] = h
	}
	h.observers++
	s.observers++
	return h, isNew
}

// leave ends an observer's use of a hub. The last one waits until everything has ended that served it.
func leave(h *hub) {
	s := h.source
	sources.mu.Lock()
	h.observers--
	s.observers--
	lastOfHub, last := h.observers == 0, s.observers == 0
	if lastOfHub {
		s.forget(h)
	}
	if last {
		delete(sources.of, s.conn.Client)
	}
	sources.mu.Unlock()
	if last {
		// The probes first, while the hub's watch keeps their stream: see etcd.Streams on empty ones.
		s.end()
		<-s.ended
	}
	if lastOfHub {
		h.end()
		<-h.ended
	}
}

// forget lets the next observer begin with a new hub. The caller holds sources.mu.
func (s *source) forget(h *hub) {
	if s.hubs[h.prefix] == h {
		delete(s.hubs, h.prefix)
	}
}

func newSource(client *clientv3.Client) *source {
	s := &source{
		conn:    etcd.Of(client),
		streams: etcd.NewStreams("observe", probePatience),
		ended:   make(chan struct{}),
		hubs:    make(map[string]*hub),
	}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background()) // it outlives the observer that it was made for
	go s.probe(ctx)
	return s
}

// probe finds out from time to time whether the stream of the watches is sound. One on a member that is cut off does
// not fail, it falls silent, and then so do the watches.
//
// It opens one more watch on the stream. The server's progress notifications would tell less: none comes while
// a watch is behind or waits for a revision that is still to come, as one does that the client has resumed where
// nothing happens; before 3.4.25 and 3.5.8 they may run ahead of the events; and all watches of the stream get each.
func (s *source) probe(ctx context.Context) {
	defer close(s.ended)
	timer := time.NewTimer(etcd.Jitter(probeEvery))
	defer timer.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if !s.sound(ctx, turn) {
			s.streams.Suspect()
		}
		timer.Reset(etcd.Jitter(probeEvery))
	}
}

// sound probes the stream. It is not sound if the server refuses a watch there, as it does when the token that the stream
// was opened with has expired, or if the member is behind what the watches have shown: it lags, or its history is
// another one, restored from a snapshot. If nothing is answered, the stream gives itself up.
func (s *source) sound(ctx context.Context, turn int) bool {
	prefix, seen := s.furthest(turn)
	if prefix == "" {
		return true
	}
	watch, opened, cancel := s.streams.Watch(ctx)
	defer cancel()
	resp := <-s.conn.Client.Watch(watch, prefix, clientv3.WithCreatedNotify())
	opened()
	return watch.Err() != nil || resp.Created && !resp.Canceled && resp.Header.Revision >= seen
}

// furthest is the last revision that a hub has seen, and the prefix of one of them, each in its turn: the server may refuse
// one and not another. A user who may watch a prefix may watch it as a key.
func (s *source) furthest(turn int) (prefix string, rev int64) {
	sources.mu.Lock()
	defer sources.mu.Unlock()
	if len(s.hubs) == 0 {
		return "", 0
	}
	for _, h := range s.hubs {
		rev = max(rev, h.seen.Load())
	}
	prefixes := slices.Sorted(maps.Keys(s.hubs))
	return prefixes[turn%len(prefixes)], rev
}
