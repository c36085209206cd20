package mix

import (
	"context"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// startPeer lets etcd's own mutex run under the same faults, as a control: it is used as its examples show, and counts
// as held until Session.Done is closed. The checkers count how often two hold it at a time.
func (r *round) startPeer(ctx context.Context, c *client, seed uint64) {
	draining, stop := context.WithCancel(ctx)
	w := &worker{
		// The mix's own figures are without the peer.
		crew: &crew{log: r.tape.Recorder, draining: r.draining}, name: c.name + "/peer", rng: rand.New(rand.NewPCG(seed, 99)),
	}
	r.peers.Go(func() {
		<-r.draining
		stop()
	})
	r.peers.Go(func() {
		for draining.Err() == nil {
			session, err := concurrency.NewSession(c.etcd, concurrency.WithTTL(int(ttl/time.Second)), concurrency.WithContext(draining))
			if err != nil {
				w.pause(w.some(20, 100))
				continue
			}
			for draining.Err() == nil && w.tryPeer(draining, c, session, pick(w.rng, r.names.peers())) {
				w.pause(w.some(5, 40))
			}
			_ = session.Close() // otherwise the lease expires
		}
	})
}

// tryPeer reports whether the session can be used again.
func (w *worker) tryPeer(ctx context.Context, c *client, session *concurrency.Session, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*ttl)
	defer cancel()
	m := concurrency.NewMutex(session, name)
	k := locker{session: c.current(), enter: history.Event{Name: name, Verb: history.Mutex}}
	k.lock = func(ctx context.Context) (*held, error) {
		return &held{ctx: context.Background(), unlock: m.Unlock, err: func() error {
			if closed(session.Done()) {
				return errLost
			}
			return nil
		}}, m.Lock(ctx)
	}
	err := w.under(ctx, k, func(op int64, h *held) {
		for end := time.Now().Add(w.some(100, 3000)); time.Now().Before(end) && !w.drained() && w.look(op, h); {
			w.pause(w.some(5, 30))
		}
	})
	return err == nil && !closed(session.Done())
}
