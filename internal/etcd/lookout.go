package etcd

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// probeEvery is how often the stream of the watches is probed, less a random part of up to a half.
	probeEvery = 5 * time.Second
	// probePatience is how long the first answer may take, less a random part of up to a half; see Streams.
	probePatience = 4 * time.Second
)

// Lookout is the stream of the watches of all those in this process who only look on through one client. It is probed.
type Lookout struct {
	Conn    *Conn
	Streams *Streams

	end   context.CancelFunc // of the probes
	ended chan struct{}

	looks map[*Look]struct{} // guarded by lookouts.mu, as is the next
	users int
}

// Look is what one of them looks at.
type Look struct {
	Prefix string       // of the keys that it watches
	Seen   atomic.Int64 // the latest revision that its watch has shown; 0: none
}

// lookouts are those of this process, by client.
var lookouts struct {
	mu sync.Mutex // guards the field below, and those of lookouts that say so
	of map[*clientv3.Client]*Lookout
}

// LookOut is the lookout of a client for one more who looks on, who must leave it.
func LookOut(client *clientv3.Client, look *Look) *Lookout {
	lookouts.mu.Lock()
	defer lookouts.mu.Unlock()
	l := lookouts.of[client]
	if l == nil {
		l = &Lookout{
			Conn: Of(client), Streams: NewStreams("observe", probePatience),
			ended: make(chan struct{}), looks: make(map[*Look]struct{}),
		}
		var ctx context.Context
		ctx, l.end = context.WithCancel(context.Background()) // it outlives the one that it was made for
		go l.probe(ctx)
		if lookouts.of == nil {
			lookouts.of = make(map[*clientv3.Client]*Lookout)
		}
		lookouts.of[client] = l
	}
	l.looks[look] = struct{}{}
	l.users++
	return l
}

// Forget has a look not probed for any more.
func (l *Lookout) Forget(look *Look) {
	lookouts.mu.Lock()
	defer lookouts.mu.Unlock()
	delete(l.looks, look)
}

// Leave is for the end of a look, before its watch is ended: that keeps the stream of the probes, see Streams on empty ones. The last one
// waits until the probes have ended.
func (l *Lookout) Leave(look *Look) {
	lookouts.mu.Lock()
	delete(l.looks, look)
	l.users--
	last := l.users == 0
	if last {
		delete(lookouts.of, l.Conn.Client)
	}
	lookouts.mu.Unlock()
	if last {
		l.end()
		<-l.ended
	}
}

// probe finds out from time to time whether the stream of the watches is sound. One on a member that is cut off does
// not fail, it falls silent, and then so do the watches.
//
// It opens one more watch on the stream. The server's progress notifications would tell less: none comes while
// a watch is behind or waits for a revision that is still to come, as one does that the client has resumed where
// nothing happens; before 3.4.25 and 3.5.8 they may run ahead of the events; and all watches of the stream get each.
func (l *Lookout) probe(ctx context.Context) {
	defer close(l.ended)
	timer := time.NewTimer(Jitter(probeEvery))
	defer timer.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if !l.sound(ctx, turn) {
			l.Streams.Suspect()
		}
		timer.Reset(Jitter(probeEvery))
	}
}

// sound probes the stream. It is not sound if the server refuses a watch there, as it does when the token that the stream
// was opened with has expired, or if the member is behind what the watches have shown: it lags, or its history is
// another one, restored from a snapshot. If nothing is answered, the stream gives itself up.
func (l *Lookout) sound(ctx context.Context, turn int) bool {
	prefix, seen := l.furthest(turn)
	if prefix == "" {
		return true
	}
	watch, opened, cancel := l.Streams.Watch(ctx)
	defer cancel()
	resp := <-l.Conn.Client.Watch(watch, prefix, clientv3.WithCreatedNotify())
	opened()
	return watch.Err() != nil || resp.Created && !resp.Canceled && resp.Header.Revision >= seen
}

// furthest is the last revision that a watch has shown, and the prefix of one of them, each in its turn: the server may refuse
// one and not another. A user who may watch a prefix may watch it as a key.
func (l *Lookout) furthest(turn int) (prefix string, rev int64) {
	lookouts.mu.Lock()
	defer lookouts.mu.Unlock()
	if len(l.looks) == 0 {
		return "", 0
	}
	prefixes := make([]string, 0, len(l.looks))
	for look := range l.looks {
		rev = max(rev, look.Seen.Load())
		prefixes = append(prefixes, look.Prefix)
	}
	slices.Sort(prefixes)
	return prefixes[turn%len(prefixes)], rev
}
