//go:build unix

package demo

import (
	"context"
	"net/http"
	"sync"
)

// door stands before the ledger. When it is shut, readers wait there: it is the slow network that a pause of the
// reader needs to hit a step of its work in the middle.
type door struct {
	mu     sync.Mutex // guards the fields below
	opened chan struct{}
	stands chan struct{} // closed when somebody stands before the shut door
}

func newDoor() *door { return &door{} }

// shut returns a channel that is closed when a reader stands before the door, which opens when open is called.
func (d *door) shut() (stands <-chan struct{}, open func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	opened := make(chan struct{})
	d.opened, d.stands = opened, make(chan struct{})
	return d.stands, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.opened = nil
		close(opened)
	})
}

// arrive is what a reader goes through.
func (d *door) arrive(ctx context.Context) {
	d.mu.Lock()
	opened := d.opened
	if opened != nil && d.stands != nil {
		close(d.stands)
		d.stands = nil
	}
	d.mu.Unlock()
	if opened == nil {
		return
	}
	select {
	case <-opened:
	case <-ctx.Done():
	}
}

func (d *door) before(ledger http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			d.arrive(r.Context())
		}
		ledger.ServeHTTP(w, r)
	})
}
