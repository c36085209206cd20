package etcd

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
