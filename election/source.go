package election

import (
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// hubs are the hubs of this process.
var hubs struct {
	mu sync.Mutex // guards the field below, and hub.observers
	of map[target]*hub
}

// target is what a hub watches.
type target struct {
	client *clientv3.Client
	prefix string
}

// join returns the hub of a prefix for one more observer, which must call leave. A hub that is new has not read
// anything yet.
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

// leave ends an observer's use of a hub. The last observer stops the hub and waits for its end.
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

// forget removes h, so that the next observer gets a new hub. The caller holds hubs.mu.
func (h *hub) forget() {
	if hubs.of[h.at] == h {
		delete(hubs.of, h.at)
	}
}
