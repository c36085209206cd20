package mix

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// peers lets c hold etcd's own mutex while work runs and another client waits for it, as a control: c counts as the
// holder until Session.Done is closed, and the checkers count how often the next holder is granted the mutex before
// that. If c does not get the mutex, work runs without a holder. peers waits until the other client has had its turn.
func (s *strike) peers(c *client, work func(holder ...*held)) {
	name := s.ownName("peer") + history.PeerMark
	next := s.clients[(slices.Index(s.clients, c)+1)%len(s.clients)]
	waiter := s.worker(next, "peer")
	var wg sync.WaitGroup
	defer wg.Wait()
	served := s.peer(s.worker(c, "peer"), c, name, ttl, func(holder *held) {
		wg.Go(func() { s.peer(waiter, next, name, 5*ttl, func(*held) {}) })
		work(holder)
	})
	if !served {
		work()
	}
}

// peer holds etcd's own mutex, used as its examples show, while work runs. It reports whether it got the mutex.
func (s *strike) peer(w *worker, c *client, name string, patience time.Duration, work func(*held)) bool {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	return w.alone(ctx, "", stock(s.life, c, name, func(m *mutex) error {
		if closed(m.session.Done()) {
			return lease.ErrLost
		}
		return nil
	}), work)
}
