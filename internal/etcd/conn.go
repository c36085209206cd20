// Package etcd is the way of this library to etcd: requests that are tried again, transactions that share commits, watches
// that leave a sick endpoint, and leases that are renewed.
//
// A [Conn] stands for a client, an [Attempt] is one try at a request, and [Conn.Do] makes attempts until one settles the
// matter. What an error says of a request is decided in one place, [Refused] and [Transient] by the table at judge. A [Line]
// carries the transactions of one lease, [Streams] the watches of a client, and a [KeepAlive] the renewals of a lease.
package etcd

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Conn is the way to etcd through one client. What has to be known once for the client is shared by all of its Conns.
type Conn struct {
	Client *clientv3.Client

	*shared
}

// shared is what lasts as long as the client. It must not lead to the client, which would live for ever.
type shared struct {
	mu        sync.Mutex // guards the fields below
	streams   map[time.Duration]*Streams
	revisions map[uint16]*Revisions
}

// clients has the shared part of each client that is in use.
var clients sync.Map // weak.Pointer[clientv3.Client] → *shared

// Of is the way through a client.
func Of(client *clientv3.Client) *Conn {
	key := weak.Make(client)
	s, known := clients.Load(key)
	if !known {
		s, known = clients.LoadOrStore(key, &shared{
			streams: make(map[time.Duration]*Streams), revisions: make(map[uint16]*Revisions),
		})
	}
	if !known {
		runtime.AddCleanup(client, func(key weak.Pointer[clientv3.Client]) { clients.Delete(key) }, key)
	}
	return &Conn{client, s.(*shared)}
}

// endpoints is how many endpoints the client has, the usual number where it does not tell.
func (c *Conn) endpoints() int {
	const usual = 3
	if n := len(c.Client.Endpoints()); n > 0 {
		return n
	}
	return usual
}

// Streams of the leases whose watches are given up after so long without a confirmation. Leases with different TTLs have
// different ones: what is too slow for a short lease is no reason to open the watches of a long one anew.
func (s *shared) Streams(patience time.Duration) *Streams {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[patience] == nil {
		s.streams[patience] = NewStreams("lease-"+patience.String(), patience)
	}
	return s.streams[patience]
}

// Revisions is the highest revision that was seen through a client in one era. A session that is made in place of another
// goes on with it.
type Revisions struct{ highest atomic.Int64 }

// Revisions of an era.
func (s *shared) Revisions(era uint16) *Revisions {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revisions[era] == nil {
		s.revisions[era] = new(Revisions)
	}
	return s.revisions[era]
}

// Highest is the highest revision that was seen.
func (r *Revisions) Highest() int64 { return r.highest.Load() }

// Raise takes note of a revision that some member has reported. It reports false if a higher one was known before.
func (r *Revisions) Raise(rev int64) bool {
	for {
		highest := r.highest.Load()
		if rev <= highest {
			return rev == highest
		}
		if r.highest.CompareAndSwap(highest, rev) {
			return true
		}
	}
}

// AttemptBound is how long the first attempt at a request may take that is about a lease: a quarter of the TTL, within half a
// second and five seconds. It is not a third, as renewals are: in step with them each retry would meet the same endpoint again.
func AttemptBound(ttl time.Duration) time.Duration {
	return min(max(ttl/4, 500*time.Millisecond), 5*time.Second)
}
