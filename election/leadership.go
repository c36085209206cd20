package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
	"github.com/leasefence/leasefence/lease"
)

// Leadership is an election that was won. Campaign returns it only when its candidate leads. Its methods are safe for
// concurrent use. Resign it when you are done, also after a loss.
type Leadership struct {
	lock *lease.Lock
	hold candidacy.Hold
	as   *candidate
	name string
	opts Options
	log  *slog.Logger

	ctx context.Context //nolint:containedctx // the life of the leadership, which Context hands out
	end context.CancelCauseFunc

	writing chan struct{} // of capacity 1: full while a Proclaim is under way, which owns written
	written int64         // the latest known revision at which the key was written

	// Under Run only Run deletes the key, after lead has returned.
	byRun bool
	to    chan choice // of capacity 1: whom the release hands over to, if to anybody
}

// Campaign waits until this candidate leads the election called name, and returns its leadership. Candidates wait in
// the order in which they came, also those of one session, but see [Options].Priority.
//
// A name is as for [lease.Session.Lock]. The session puts its prefix before it.
//
// Ctx bounds the wait only; the leadership lasts until Resign or a loss. On an error the caller does not lead, and its
// key is deleted or will be deleted in the background. The error wraps ctx's cause if ctx ended, matches
// [lease.ErrLost] if the session's lease or the place in the queue was lost while waiting, and otherwise is as for
// [lease.Session.Lock]. If the session has lost its lease before the call, Campaign takes a new lease first.
func Campaign(ctx context.Context, session *lease.Session, name string, opts Options) (*Leadership, error) {
	if err := check(session, name, opts); err != nil {
		return nil, err
	}
	l, err := campaign(ctx, session, name, opts, false)
	if err != nil {
		return nil, fmt.Errorf("election: campaign %q: %w", name, err)
	}
	return l, nil
}

func campaign(ctx context.Context, s *lease.Session, name string, opts Options, byRun bool) (*Leadership, error) {
	as := &candidate{priority: opts.Priority, asked: make(chan struct{}, 1), log: candidacy.Logger(s).With("election", name)}
	hold, err := candidacy.Campaign(ctx, s, name, opts.Value, candidacy.Candidate{
		Mark: mark(opts.Priority), Waits: as.waits, Touched: as.touched,
	})
	if err != nil {
		return nil, err
	}
	lock := hold.Lock.(*lease.Lock)
	l := &Leadership{
		lock: lock, hold: hold, as: as, name: name, opts: opts, byRun: byRun,
		log:     as.log.With("token", lock.Token().String()),
		writing: make(chan struct{}, 1), written: hold.Entry.Rev,
		to: make(chan choice, 1),
	}
	l.ctx, l.end = context.WithCancelCause(context.WithValue(lock.Context(), leadershipKey{}, l))
	if !byRun {
		opts.Health.add(l.ctx, l) // it looks after the leadership, not the campaign
	}
	l.log.Info("leads")
	if !opts.KeepLead {
		if leave := candidacy.Enter(s); leave != nil {
			go func() {
				defer leave()
				l.prefer()
			}()
		}
	}
	return l, nil
}

// prefer ends the leadership once it can be handed over to a candidate of a higher priority.
func (l *Leadership) prefer() {
	if l.awaitPreferred(l.ctx) != nil {
		return
	}
	select {
	case l.to <- choice{above: l.opts.Priority}:
		_ = l.lock.Err() // ends l.ctx with the loss if the deadline has passed
		l.end(ErrHandedOver)
		l.log.Info("hands over to a candidate of a higher priority")
	default: // a Transfer came first
	}
}

type leadershipKey struct{}

// FromContext returns the leadership that ctx belongs to, if ctx is [Leadership.Context], the context that [Run] passes
// to lead, or derived from either.
func FromContext(ctx context.Context) (*Leadership, bool) {
	l, ok := ctx.Value(leadershipKey{}).(*Leadership)
	return l, ok
}

// Token is the fencing token of this leadership. It is larger than that of every earlier leader and never changes.
func (l *Leadership) Token() fence.Token { return l.lock.Token() }

// Context ends when the leadership is lost or resigned, whichever is first, and [context.Cause] says which: a
// [*lease.LostError], [ErrResigned] or [lease.ErrAskedToRelease]. It ends before the server can let another candidate
// lead (see the guarantees of package lease), with no help from the network. It carries the token for
// [fence.FromContext]. The end of the context given to Campaign does not end it.
func (l *Leadership) Context() context.Context { return l.ctx }

// Err is nil while this candidate leads, and the cause of its context after that. It checks the clock itself, so it is
// right also in a process that has just woken up from a pause and whose timer has not yet ended the context.
func (l *Leadership) Err() error {
	_ = l.lock.Err() // ends l.ctx if the deadline has passed
	return context.Cause(l.ctx)
}

// Deadline is when the leadership is lost unless its lease is renewed before. The session renews it every third of its
// TTL.
func (l *Leadership) Deadline() time.Time { return l.lock.Deadline() }

// Name is the election's name with the session's prefix, as [Current] and [Observe] take it.
func (l *Leadership) Name() string { return strings.TrimSuffix(queue.Below([]byte(l.Key())), "/") }

// Key is the leader's key in etcd.
func (l *Leadership) Key() string { return l.lock.Key() }

// IsOwner is a comparison for the caller's own etcd transactions. It is true while this leadership's key is there. The
// server checks it in one step with the transaction, which the context cannot do.
func (l *Leadership) IsOwner() clientv3.Cmp { return l.lock.IsOwner() }

// Resign ends the leadership: first its context, then its key is deleted if it is still this leadership's, and the next
// candidate leads. The error is nil if this candidate led until now. It matches [lease.ErrLost] if the leadership had
// already been lost; only the first call reports that. It matches [ErrResigned] if Resign was called before. If ctx
// ends before the server has confirmed, the error wraps ctx's cause, and the deletion goes on in the background until
// it is confirmed or the lease has ended; call Resign again to wait for that.
//
// Ctx may be the leadership's own, which Resign ends: Resign then waits for the release for 8 s at most.
//
// Under [Run], Resign ends the context and returns nil: Run releases the key when lead has returned.
func (l *Leadership) Resign(ctx context.Context) error {
	if _, err := l.finish(ctx); err != nil {
		return fmt.Errorf("election: resign from %q: %w", l.name, err)
	}
	return nil
}

// finish ends the leadership's context and, except under Run, deletes its key.
func (l *Leadership) finish(ctx context.Context) (missed, err error) {
	ended := ctx.Err() != nil && l.ctx.Err() == nil
	l.stop()
	if l.byRun {
		return nil, nil
	}
	ctx, cancel := scope.Beyond(ctx, l.ctx, ended, l.hold.Patience)
	defer cancel()
	return l.release(ctx)
}

// stop ends the leadership's context.
func (l *Leadership) stop() {
	_ = l.lock.Err() // ends l.ctx with the loss if the deadline has passed
	l.end(ErrResigned)
}

// release deletes the key. Missed says why the candidate chosen by l.to does not lead next.
func (l *Leadership) release(ctx context.Context) (missed, err error) {
	l.opts.Health.remove(l)
	var handOver func(context.Context) (bool, error)
	select {
	case to := <-l.to:
		handOver = func(ctx context.Context) (deleted bool, err error) {
			deleted, missed, err = l.handOver(ctx, to)
			return deleted, err
		}
	default:
	}
	switch err = l.hold.Release(ctx, handOver); err {
	case nil:
		l.log.Info("resigned")
	case lease.ErrUnlocked: //nolint:errorlint // wrapped, it is the cause of ctx
		err = ErrResigned
	}
	return missed, err
}

// Transfer resigns in favour of the first waiting candidate with the given value: nobody else leads in between.
// Candidates that wait before it enter again at the end, whatever their priority; see the package's section on order.
//
// Transfer looks for the candidate first. If that fails, Transfer leaves the leadership as it is. The error then
// matches [ErrNoCandidate] if no candidate with the value waits, [ErrBlocked] if a lock or a candidate of another
// library waits before it, [lease.ErrLost], [ErrResigned] or [lease.ErrAskedToRelease] if the leadership has ended, or
// wraps ctx's cause.
//
// Otherwise the leadership ends, and Transfer returns the errors of Resign. If the candidate leaves at the last moment,
// the next one in the queue leads, and the error matches ErrNoCandidate or ErrBlocked. If etcd's database is full,
// nobody can be passed: the next one in the queue leads, and the error is etcd's. After another error of etcd's, or if
// ctx ends before the server has confirmed, either of the two may lead.
//
// A value has 1 to 4,096 bytes. A lock is no candidate, whatever its value. Ctx may be the leadership's own, as for
// Resign.
//
// Under [Run], Transfer ends the context and returns: Run releases the key when lead has returned.
func (l *Leadership) Transfer(ctx context.Context, value string) error {
	// An empty value chooses no candidate: locks of etcd's own package have it.
	if err := checkValue("value", value, 1); err != nil {
		return err
	}
	if err := l.transfer(ctx, choice{value: value}); err != nil {
		return fmt.Errorf("election: transfer %q: %w", l.name, err)
	}
	return nil
}

func (l *Leadership) transfer(ctx context.Context, to choice) error {
	if err := l.Err(); err != nil {
		return err
	}
	look, cancel := scope.Join(ctx, l.ctx)
	_, err := l.findHeir(look, to)
	cancel()
	if err != nil {
		// Another call may have ended the leadership meanwhile, and taken the candidate out of the queue.
		if ended := l.Err(); ended != nil {
			return ended
		}
		return err
	}
	select {
	case l.to <- to:
	default: // another Transfer, or prefer, came first
		return ErrResigned
	}
	missed, err := l.finish(ctx)
	if missed != nil {
		missed = fmt.Errorf("resigned, but not to %q: %w", to.value, missed)
	}
	return errors.Join(missed, err)
}

// lost returns why the leadership was lost, nil if it was not.
func (l *Leadership) lost() error {
	if err := l.Err(); errors.Is(err, lease.ErrLost) {
		return err
	}
	return nil
}

// Explain tells why a resource refused this leadership's token with err. If etcd's revisions went back, as they do when
// etcd is restored from a snapshot, the result matches [lease.ErrRestored] and [fence.ErrStale]: raise the session's
// era. In all other cases the result is err: another candidate leads, or has led since. See [lease.Lock.Explain].
func (l *Leadership) Explain(ctx context.Context, err error) error { return l.lock.Explain(ctx, err) }
