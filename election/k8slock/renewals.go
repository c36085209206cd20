package k8slock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
)

// renewals are the streams over which the lease of a tenure is renewed. They are kept from one renewal to the next,
// since the server checks a client's password for each new stream.
type renewals struct {
	conn  *etcd.Conn
	lease clientv3.LeaseID

	mu    sync.Mutex        // guards the fields below
	idle  []*etcd.KeepAlive // the one that has answered last comes last
	ended bool
}

// send sends one renewal and waits for its answer until ctx ends. The stream goes on waiting after that: if a slow
// server answers within patience, the stream is kept for the next renewal, and otherwise it is closed.
func (r *renewals) send(ctx context.Context, patience time.Duration) error {
	k := r.take(patience) // the stream outlives the call
	answered := make(chan error, 1)
	go func() {
		late := time.AfterFunc(patience, k.Close)
		_, err := k.Renew(clock.System)
		if late.Stop() && err == nil {
			r.keep(k)
		} else {
			k.Close()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take returns a stream that waits for no answer. The client opens each new stream to the next of its endpoints.
func (r *renewals) take(patience time.Duration) *etcd.KeepAlive {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.idle) - 1
	if last < 0 {
		return r.conn.NewKeepAlive(context.Background(), r.lease, "", patience)
	}
	k := r.idle[last]
	r.idle = r.idle[:last]
	return k
}

func (r *renewals) keep(k *etcd.KeepAlive) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		k.Close()
		return
	}
	r.idle = append(r.idle, k)
}

// end closes the idle streams. keep closes a stream that still waits for its answer.
func (r *renewals) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, k := range r.idle {
		k.Close()
	}
}
