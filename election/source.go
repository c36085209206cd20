package election

import (
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// hubs are those of this process.
var hubs struct {
	mu sync.Mutex // guards the field below, and those of hubs that say so
	of map[target]*hub
}

// target is what a hub watches.
type target struct {
	client *clientv3.Client
	prefix string
}

// join returns the hub of a prefix to one more observer, which must leave it, and whether it is new: it will not have
// read anything before.
func join(client *clientv3.Client, prefix string) (h *hub, isNew bool) {
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	at := target{client, prefix}
	h = hubs.of[at]
	if isNew = h == nil; isNew {
		h = newHub(at)
		if hubs.of == nil {
			hubs.of = make(map[target]*hub)
		}
		hubs.of[at] = h
	}
	h.observers++
	return h, isNew
}

// leave ends an observer's use of a hub. The last one waits until everything has ended that served it.
func leave(h *hub) {
	hubs.mu.Lock()
	h.observers--
	last := h.observers == 0
	if last {
		h.forget()
	}
	hubs.mu.Unlock()
	if last {
		h.out.Leave(&h.look)
		h.end()
		<-h.ended
	}
}

// forget lets the next observer begin with a new hub. The caller holds hubs.mu.
func (h *hub) forget() {
	if hubs.of[h.at] == h {
		delete(hubs.of, h.at)
	}
}
