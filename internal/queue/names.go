package queue

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// names has, for each client that is in use, the names of streams that nobody uses any more. What a lease leaves empty in the
// client is taken over by one that comes after it: a process that loses many leases would collect streams otherwise.
var names sync.Map // weak.Pointer[clientv3.Client] → *pool

// pool has the names of one client.
type pool struct {
	mu   sync.Mutex // guards the fields below
	free []*name
	made int
}

// name is that of the streams of one user, and the number of the next.
type name struct {
	id   string
	next atomic.Int64
}

// StreamsOf is [NewStreams] with a name that no other user of the client has now.
func StreamsOf(client *clientv3.Client, patience time.Duration) *Streams {
	key := weak.Make(client)
	p, known := names.LoadOrStore(key, new(pool))
	if !known {
		runtime.AddCleanup(client, func(key weak.Pointer[clientv3.Client]) { names.Delete(key) }, key)
	}
	n := p.(*pool).take()
	s := newStreams(n, patience)
	runtime.AddCleanup(s, p.(*pool).give, n) // no watch can be opened any more
	return s
}

func (p *pool) take() *name {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.free) - 1; last >= 0 {
		n := p.free[last]
		p.free = p.free[:last]
		return n
	}
	p.made++
	return &name{id: "lease-" + strconv.Itoa(p.made)}
}

func (p *pool) give(n *name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, n)
}
