package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/internal/etcd"
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

// Explain tells why a resource refused this leadership's token with err. If etcd's revisions went back, as they do when
// etcd is restored from a snapshot, the result matches [lease.ErrRestored] and [fence.ErrStale]: raise the session's
// era. In all other cases the result is err: another candidate leads, or has led since. See [lease.Lock.Explain].
func (l *Leadership) Explain(ctx context.Context, err error) error { return l.lock.Explain(ctx, err) }

// Proclaim changes the value that others see of the leader. Lease and token stay. It writes only while this
// leadership's key is there. Concurrent calls are carried out one after the other.
//
// A value has at most 4 KiB. On an error the value is unchanged, unless the error says that it may be the new one: an
// attempt was sent and its answer has not arrived, whatever a later attempt was answered. A late request never undoes a
// later Proclaim. The error wraps ctx's cause if ctx ended, and matches [lease.ErrLost], [ErrResigned] or
// [lease.ErrAskedToRelease] if the leadership has ended.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	if err := checkValue("value", value, 0); err != nil {
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
	ctx, cancel := scope.Join(ctx, l.ctx)
	defer cancel()
	var found error
	late, err := l.hold.While(ctx, func(a *etcd.Attempt) (err error) {
		found, err = l.write(ctx, a, value)
		return cmp.Or(err, found)
	})
	if late && err != nil && found == nil {
		err = fmt.Errorf("%w; the value may be the new one", err)
	}
	return err
}

// write puts a value into the leader's key, on condition that the key was not modified since l.written: so a late
// request cannot undo a later one. Found is why the leadership has ended, if the key shows that: no attempt can write the
// value any more.
func (l *Leadership) write(ctx context.Context, a *etcd.Attempt, value string) (found, err error) {
	for e := l.hold.Entry; ; {
		resp, err := l.hold.Queue.Line.Commit(a, etcd.Txn{
			If:   []clientv3.Cmp{e.Held(), clientv3.Compare(clientv3.ModRevision(e.Key), "=", l.written)},
			Then: []*pb.RequestOp{etcd.Put(e.Key, value, e.Lease)},
			Else: []*pb.RequestOp{etcd.Get(e.Key)},
		})
		switch {
		case err != nil:
			return nil, err
		case resp.Succeeded:
			l.written = resp.Revision
			l.as.rev.Store(l.written) // nobody has asked by this write
			return nil, nil
		}
		kv := first(resp.Responses[0].GetResponseRange().Kvs)
		switch {
		case kv == nil || kv.CreateRevision != e.Rev:
			return l.ended(ctx, queue.Deleted), nil
		case clientv3.LeaseID(kv.Lease) != e.Lease:
			return l.ended(ctx, queue.Overwritten), nil
		case queue.Asked(kv):
			if found := l.ended(ctx, queue.Unwanted); queue.Text(kv) != value {
				return found, nil
			}
		}
		// The key was written on the same lease: by a candidate that asks this leader to hand over, by another handle
		// of this candidate, or by an attempt whose answer was lost.
		l.written = kv.ModRevision
		l.as.touched(l.written) // the watch may show the next write only
		if queue.Text(kv) == value {
			return nil, nil
		}
	}
}

// ended reports what was found of the leader's key, and returns why the leadership has ended.
func (l *Leadership) ended(ctx context.Context, end queue.End) error {
	l.hold.Ended(ctx, end)
	return l.Err()
}

// The bounds of the options.
const (
	maxValue    = 4 << 10
	maxPriority = 9999
)

// Options of a candidate. The zero value of a field is its default.
type Options struct {
	// Value is what others see of the leader, such as its address; [Leadership.Transfer] names a candidate by it. At
	// most 4 KiB. Default: the session's Owner.
	Value string
	// Priority ranks the candidates: a leader of a lower priority hands over to this candidate once the candidate has
	// waited for a second. 0 to 9999. Default 0. Candidates of etcd's own packages have none, and never hand over. See
	// the package's section on priority.
	Priority int
	// KeepLead keeps this candidate, when it leads, from handing over to a candidate of a higher priority. Default: it
	// hands over.
	KeepLead bool
	// Health checks the leadership from its beginning to its end. Default: none.
	Health *Health
}

// check refuses bad input before anything is sent.
func check(session *lease.Session, name string, opts Options) error {
	if session == nil {
		return errors.New("election: session is nil, want a lease.Session")
	}
	if err := queue.CheckName(name); err != nil {
		return fmt.Errorf("election: name %w", err)
	}
	if err := checkValue("Options.Value", opts.Value, 0); err != nil {
		return err
	}
	if opts.Priority < 0 || opts.Priority > maxPriority {
		return fmt.Errorf("election: Options.Priority is %d, want 0 to %d", opts.Priority, maxPriority)
	}
	return nil
}

func checkValue(field, value string, least int) error {
	if len(value) < least || len(value) > maxValue {
		return fmt.Errorf("election: %s has %d bytes, want %d to %d", field, len(value), least, maxValue)
	}
	return nil
}

// The outcomes that callers tell apart with errors.Is, besides those of package lease: a leadership that was lost
// matches [lease.ErrLost] and carries a [lease.LostError], a closed session matches [lease.ErrClosed].
var (
	// ErrResigned says that the leadership has already been resigned or transferred. It is also the cause of its
	// context.
	ErrResigned = errors.New("election: resigned")
	// ErrHandedOver is the cause of a leadership's context that ended in favour of a candidate of a higher priority. It
	// matches ErrResigned too.
	ErrHandedOver = fmt.Errorf("%w: handed over to a candidate of a higher priority", ErrResigned)
	// ErrNoCandidate says that no waiting candidate has the given value.
	ErrNoCandidate = errors.New("election: no such candidate")
	// ErrBlocked says that a contender which cannot be passed waits before the candidate: a candidate or a lock of
	// etcd's own packages, or a lock of package lease.
	ErrBlocked = errors.New("election: a lock or a candidate of another library is ahead")
)
