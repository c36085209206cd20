package mix

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// loner holds a lock on a session that nothing else uses, so that no other call that checks the deadline can end the
// handle. It asks all the time whether the handle is live.
type loner struct {
	*held
	ended  chan struct{}      // closed when the handle has ended, or was asked for long enough
	stop   context.CancelFunc // makes it release the lock
	closed chan struct{}      // closed when the session is
}

// newLoner takes a lock on a new session of c. It returns nil if it does not get the lock. The loner asks the handle
// or, with history.ByContext, only the handle's context.
func (s *strike) newLoner(c *client, by history.Verb, kind func(*lease.Session, string) locker) *loner {
	ctx, cancel := context.WithTimeout(s.ctx, ttl)
	defer cancel()
	session, err := lease.NewSession(ctx, c.etcd, lease.Options{TTL: ttl, Owner: c.name})
	if err != nil {
		return nil
	}
	return s.alone(ctx, s.worker(c, "loner"), by, kind(session, s.ownName("loner")), session.Close)
}

// ownName returns a name that nothing else uses.
func (s *strike) ownName(whose string) string {
	return s.round.names.own(whose + strconv.FormatInt(s.tape.ID(), 10))
}

// alone makes w a loner that takes the lock k. It returns nil if ctx ends before. The lock's session is closed at the
// end.
func (s *strike) alone(ctx context.Context, w *worker, by history.Verb, k locker, closeSession func(context.Context) error) *loner {
	life, stop := context.WithCancel(s.life)
	l := &loner{ended: make(chan struct{}), stop: stop, closed: make(chan struct{})}
	granted := make(chan *held, 1)
	go func() {
		defer close(l.closed)
		_ = w.under(ctx, k, func(op int64, h *held) { // the error is recorded
			granted <- h
			w.ask(life, op, h, by)
			close(l.ended)
			<-life.Done()
		})
		close(granted)
		closing, cancel := context.WithTimeout(context.WithoutCancel(life), ttl)
		defer cancel()
		_ = closeSession(closing) // otherwise the lease expires
	}()
	if l.held = <-granted; l.held == nil {
		l.leave()
		return nil
	}
	return l
}

func (w *worker) ask(ctx context.Context, op int64, h *held, by history.Verb) {
	for ; ctx.Err() == nil; sleep(ctx, 5*time.Millisecond) {
		at := w.log.Now()
		switch {
		case by == "" && !w.look(op, h), by != "" && h.ctx.Err() != nil:
			return
		case by != "":
			w.log.Record(history.Event{At: at, Kind: history.Live, Op: op, Verb: by})
		}
	}
}

// awaitEnd waits until all handles have ended, for at most a TTL and 2 s.
func (s *strike) awaitEnd(all []*loner) {
	ctx, cancel := context.WithTimeout(s.ctx, ttl+2*time.Second)
	defer cancel()
	for _, l := range all {
		select {
		case <-l.ended:
		case <-ctx.Done():
		}
	}
}

func (l *loner) leave() {
	l.stop()
	<-l.closed
}

func (l *loner) expired() bool {
	lost, ok := errors.AsType[*lease.LostError](context.Cause(l.ctx))
	return ok && lost.Reason == lease.ReasonDeadlinePassed
}
