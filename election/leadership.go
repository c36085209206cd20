package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/lease"
)

// Leadership is an election that was won: there is one if and only if its candidate leads. Its methods are safe for
// concurrent use. Whoever receives it resigns it, also after a loss.
type Leadership struct {
	tenure candidacy.Tenure
	name   string
	opts   Options
	log    *slog.Logger

	ctx context.Context //nolint:containedctx // the life of the leadership, which Context hands out
	end context.CancelCauseFunc

	writing chan struct{} // of capacity 1: held by the Proclaim that is under way

	// Under Run the key is let go by Run alone, when lead has returned.
	byRun bool
	to    chan string // of capacity 1: to whom, if that was asked for
}

// Campaign waits until this candidate leads the election called name, and returns its leadership. Candidates wait in
// the order in which they came, also those of one session, but see [Options].Priority.
//
// A name is as for [lease.Session.Lock], with the session's prefix before it. The same keys are used by
// concurrency.Election with the same name and by etcdctl elect, and by locks of that name: all of them are in one
// queue.
//
// Ctx bounds the wait only; the leadership lasts until Resign or a loss. On an error the caller does not lead and has
// left the queue, or leaves it in the background: the error wraps ctx's cause if ctx ended, matches [lease.ErrLost]
// if the session's lease or the place in the queue was lost while waiting, and [lease.ErrClosed] if the session is
// closed. A lease that was lost before is replaced first.
func Campaign(ctx context.Context, session *lease.Session, name string, opts Options) (*Leadership, error) {
	s, err := check(session, name, opts)
	if err != nil {
		return nil, err
	}
	l, err := campaign(ctx, s, name, opts, false)
	if err != nil {
		return nil, fmt.Errorf("election: campaign %q: %w", name, err)
	}
	return l, nil
}

func campaign(ctx context.Context, s candidacy.Session, name string, opts Options, byRun bool) (*Leadership, error) {
	t, err := s.Campaign(ctx, name, opts.Value, opts.Priority)
	if err != nil {
		return nil, err
	}
	l := &Leadership{
		tenure: t, name: name, opts: opts, byRun: byRun,
		log:     s.Logger().With("election", name, "token", t.Token().String()),
		writing: make(chan struct{}, 1),
		to:      make(chan string, 1),
	}
	l.ctx, l.end = context.WithCancelCause(context.WithValue(t.Context(), leadershipKey{}, l))
	opts.Health.add(l) //nolint:contextcheck // it looks after the leadership, not the campaign
	l.log.Info("leads")
	return l, nil
}

type leadershipKey struct{}

// FromContext returns the leadership that a context belongs to: that of [Leadership.Context], the one that [Run] gives
// to lead, or any made of them.
func FromContext(ctx context.Context) (*Leadership, bool) {
	l, ok := ctx.Value(leadershipKey{}).(*Leadership)
	return l, ok
}

// Token is the fencing token of this leadership: larger than that of every earlier leader, and fixed from the first.
func (l *Leadership) Token() fence.Token { return l.tenure.Token() }

// Context ends when the leadership is lost or resigned, whichever is first, and [context.Cause] says which: a
// [*lease.LostError] or [ErrResigned]. It ends before the server can let another lead (see the guarantees of package
// lease), with no help from the network. It carries the token for [fence.FromContext], and is not tied to the context
// given to Campaign.
func (l *Leadership) Context() context.Context { return l.ctx }

// Err is nil while this candidate leads, and the cause of its context after that. It compares the clock itself: in a
// process that has just woken up from a pause it is right before the timer has run that ends the context.
func (l *Leadership) Err() error {
	_ = l.tenure.Err() // ends the context if the deadline has passed
	return context.Cause(l.ctx)
}

// Remaining is the time until the leadership is lost unless its lease is renewed before, as it is every third of the
// TTL. It is 0 after a loss.
func (l *Leadership) Remaining() time.Duration {
	left, _ := l.tenure.Lease()
	return max(left, 0)
}

// Name is the election's name, without the session's prefix.
func (l *Leadership) Name() string { return l.name }

// Key is the leader's key in etcd.
func (l *Leadership) Key() string { return l.tenure.Key() }

// Held is a comparison for the caller's own etcd transactions: true while this leadership's key is there. Unlike the
// context it is checked by the server, in one step with the transaction.
func (l *Leadership) Held() clientv3.Cmp { return l.tenure.Held() }

// Proclaim changes the value that others see of the leader. Lease and token stay. It is done only while this
// leadership's key is there; calls are carried out one after the other.
//
// A value has at most 4 KiB. On an error the value is as it was or, if ctx ended before the server had answered, may
// be the new one; a request that is late never undoes a later Proclaim. The error wraps ctx's cause if ctx ended, and
// matches [lease.ErrLost] or [ErrResigned] if the leadership has ended.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	if err := checkValue("value", value); err != nil {
		return err
	}
	if err := l.proclaim(ctx, value); err != nil {
		return fmt.Errorf("election: proclaim in %q: %w", l.name, err)
	}
	return nil
}

func (l *Leadership) proclaim(ctx context.Context, value string) error {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := l.Err(); err != nil {
		return err
	}
	return translate(l.tenure.Proclaim(ctx, value))
}

// Resign ends the leadership: first its context, then its key is deleted if it is still this leadership's, and the
// next candidate leads.
//
// The error is nil if this candidate led until now, matches [lease.ErrLost] if the leadership had been lost, which is
// told once, and [ErrResigned] if it was resigned before. If ctx ends before the server has confirmed, the error wraps
// ctx's cause and the deletion goes on in the background until it is confirmed or the lease has gone; Resign may be
// called again then, to wait for that.
//
// Under [Run], Resign ends the context and returns nil: Run lets go when lead has returned.
func (l *Leadership) Resign(ctx context.Context) error {
	if !l.stop() {
		return nil
	}
	if err := l.release(ctx); err != nil {
		return fmt.Errorf("election: resign from %q: %w", l.name, err)
	}
	return nil
}

// stop ends the leadership for its caller. It reports whether the key is to be let go at once.
func (l *Leadership) stop() bool {
	_ = l.tenure.Err() // a loss that has happened comes first
	l.end(ErrResigned)
	return !l.byRun
}

// release lets the key go.
func (l *Leadership) release(ctx context.Context) error {
	l.opts.Health.remove(l)
	var err error
	select {
	case to := <-l.to:
		err = l.tenure.ResignTo(ctx, to)
	default:
		err = l.tenure.Resign(ctx)
	}
	if err == nil {
		l.log.Info("resigned")
	}
	return translate(err)
}

// Transfer resigns in favour of the first candidate that waits with the given value: nobody else leads in between.
// Those that wait before it let it pass, whatever their priority; see the package's section on order.
//
// The candidate is brought to the front first, while this one still leads. If that fails the leadership goes on and
// the error matches [ErrNoCandidate] if nobody with the value waits, [ErrBlocked] if somebody who does not let others
// pass waits before it, [lease.ErrLost] or [ErrResigned] if the leadership has ended, or wraps ctx's cause: candidates
// that wait before it and do not answer, because they hang, hold it up until they answer or their lease expires.
// After that the leadership ends, and an error is as of Resign; one that matches ErrNoCandidate or ErrBlocked then
// says that the candidate has left at the last moment, and that the next one leads.
//
// Under [Run], Transfer ends the context and returns: Run lets go when lead has returned.
func (l *Leadership) Transfer(ctx context.Context, value string) error {
	if err := checkValue("value", value); err != nil {
		return err
	}
	if err := l.transfer(ctx, value); err != nil {
		return fmt.Errorf("election: transfer %q: %w", l.name, err)
	}
	return nil
}

func (l *Leadership) transfer(ctx context.Context, value string) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.tenure.Promote(ctx, value); err != nil {
		return translate(err)
	}
	select {
	case l.to <- value:
	default: // another Transfer or Resign was first
		return ErrResigned
	}
	if !l.stop() {
		return l.lost()
	}
	return l.release(ctx)
}

// lost is why the leadership was lost, nil if it was not.
func (l *Leadership) lost() error {
	if err := l.Err(); errors.Is(err, lease.ErrLost) {
		return err
	}
	return nil
}
