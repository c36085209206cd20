package mix

import (
	"context"
	"slices"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// peers lets c hold etcd's own mutex and another client wait for it, as a control: c counts as the holder until
// Session.Done is closed, and the checkers count how often the next holder is granted the mutex before that. peers
// returns the holder, nil if c does not get the mutex. end waits until the other client has had its turn.
func (s *strike) peers(c *client) (holder *loner, end func()) {
	name, served := s.ownName("peer")+history.PeerMark, make(chan struct{})
	if holder = s.newPeer(s.worker(c, "peer"), c, name, ttl); holder == nil {
		return nil, nil
	}
	next := s.clients[(slices.Index(s.clients, c)+1)%len(s.clients)]
	waiter := s.worker(next, "peer")
	go func() {
		defer close(served)
		if l := s.newPeer(waiter, next, name, 5*ttl); l != nil {
			l.leave()
		}
	}()
	return holder, func() { <-served }
}

// newPeer is newLoner for etcd's own mutex, used as its examples show.
func (s *strike) newPeer(w *worker, c *client, name string, patience time.Duration) *loner {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	w.log = s.tape.Recorder // nobody waits for the peer, and no fault takes its mutex
	k := stock(s.life, c, name, func(m *mutex) error {
		if closed(m.session.Done()) {
			return lease.ErrLost
		}
		return nil
	})
	return s.alone(ctx, w, "", k, func(context.Context) error { return nil }) // Unlock ends the session
}
