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
// handle. It asks all the time whether the handle is live: the handle or, with history.ByContext, only the handle's
// context.
type loner struct {
	*worker
	session *lease.Session
	lock    unlocker
	op      int64
	stop    context.CancelFunc // ends the asking
	stopped chan struct{}
}

// newLoner takes a lock on a new session of c. It returns nil if it does not get the lock.
func (s *strike) newLoner(c *client, by history.Verb, kind func(*lease.Session, string) locker) *loner {
	ctx, cancel := context.WithTimeout(s.ctx, s.ttl)
	defer cancel()
	session, err := lease.NewSession(ctx, c.etcd, lease.Options{TTL: s.ttl, Owner: c.name})
	if err != nil {
		return nil
	}
	l := &loner{worker: s.worker(c, "loner"), session: session, stopped: make(chan struct{})}
	k := kind(session, s.round.names.own("loner"+strconv.FormatInt(s.tape.ID(), 10)))
	l.op = l.enter(k.enter)
	if l.lock, err = k.lock(ctx); err != nil {
		l.giveUp(l.op, session.Status().LeaseID, err)
		l.close()
		return nil
	}
	l.granted(l.op, k.resource(l.lock), l.lock)
	asking, stop := context.WithCancel(s.life) //nolint:gosec // leave calls it
	l.stop = stop
	go l.ask(asking, by)
	return l
}

func (l *loner) ask(ctx context.Context, by history.Verb) {
	const often = 5 * time.Millisecond
	defer close(l.stopped)
	for ctx.Err() == nil {
		at, err := l.log.Now(), l.lock.Context().Err()
		if by != history.ByContext {
			err = l.lock.Err()
		}
		if err != nil {
			return
		}
		l.log.Record(history.Event{At: at, Kind: history.Live, Op: l.op, Verb: by})
		sleep(ctx, often)
	}
}

// awaitEnd waits until all handles have ended, for at most a TTL and 2 s.
func (s *strike) awaitEnd(all []*loner) {
	ctx, cancel := context.WithTimeout(s.ctx, s.ttl+2*time.Second)
	defer cancel()
	for _, l := range all {
		select {
		case <-l.stopped:
		case <-ctx.Done():
		}
	}
}

// leave releases the lock, and reports whether the handle was lost at its deadline.
func (l *loner) leave() (expired bool) {
	l.stop()
	<-l.stopped
	lost, ok := errors.AsType[*lease.LostError](context.Cause(l.lock.Context()))
	l.release(l.op, l.lock, l.lock.Unlock)
	l.close()
	return ok && lost.Reason == lease.ReasonDeadlinePassed
}

func (l *loner) close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.ttl)
	defer cancel()
	_ = l.session.Close(ctx) // otherwise the lease expires
}
