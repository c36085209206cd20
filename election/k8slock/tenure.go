package k8slock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/scope"
)

// tenure is the time from one acquisition to its end. It has its own etcd lease, by which a Lock recognizes its record.
type tenure struct {
	token    fence.Token
	lease    clientv3.LeaseID
	seconds  int           // the record's LeaseDurationSeconds
	valid    time.Duration // after from
	renewals renewals
	ctx      context.Context //nolint:containedctx // it is the tenure's life
	end      context.CancelCauseFunc

	mu   sync.Mutex // guards the field below
	from clock.Instant
}

// newTenure begins a tenure of a record's duration on a lease. Its time counts from the instant from, before anything
// was sent; it may be over already.
//
// Other candidates go by the record's duration, the server by the lease's TTL, which it may have raised: the shorter
// counts, less a margin for clocks that differ in rate and for the time from the deadline to the last write.
func newTenure(conn *etcd.Conn, token fence.Token, seconds int, grant *clientv3.LeaseGrantResponse, from clock.Instant) *tenure {
	granted := time.Duration(min(int64(seconds), grant.TTL)) * time.Second
	ctx, end := context.WithCancelCause(context.Background())
	t := &tenure{
		token:    token,
		lease:    grant.ID,
		seconds:  seconds,
		valid:    granted - min(granted/10, time.Second),
		renewals: renewals{conn: conn, lease: grant.ID},
		ctx:      ctx,
		end:      end,
		from:     from,
	}
	go t.expire()
	return t
}

// expire ends the tenure at its deadline, and returns when the tenure is over. Its timer also counts the time for which
// the host is suspended, so it fires as soon as the host wakes up.
func (t *tenure) expire() {
	defer t.renewals.end()
	look := clock.System.NewTimer(t.remaining())
	defer look.Stop()
	for t.live() {
		select {
		case <-t.ctx.Done():
		case <-look.C: // possibly early, and renewals have moved the deadline
			look.Reset(t.remaining())
		}
	}
}

// live reports whether the tenure goes on. It checks the clock itself: after a pause of the process it may be called
// before the timer has fired.
func (t *tenure) live() bool {
	if t.remaining() <= 0 {
		t.end(fmt.Errorf("%w: no renewal was acknowledged before the deadline", ErrLost))
	}
	return t.ctx.Err() == nil
}

// extend records a renewal of a call that began at from, and reports whether the tenure goes on. A tenure past its deadline
// stays over.
func (t *tenure) extend(from clock.Instant) bool {
	if !t.live() {
		return false
	}
	t.mu.Lock()
	t.from = from
	t.mu.Unlock()
	return t.live()
}

func (t *tenure) remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.valid - clock.System.Since(t.from)
}

// Token returns the fencing token of the present tenure and true, or 0 and false if there is none: before the first
// acquisition, and after the elector has stopped or the tenure was lost or has passed its deadline.
//
// Work should carry the token of the tenure in which it began; use [Lock.NewContext] for that. A later call of Token
// may return the next tenure's.
func (l *Lock) Token() (fence.Token, bool) {
	t := l.present()
	if t == nil || !t.live() {
		return 0, false
	}
	return t.token, true
}

// NewContext returns a context for the work of the present tenure. It carries the tenure's token for package fence and,
// as the lock's name, the record's key. It ends with ctx or with the tenure, whichever is first: at the latest at the
// local deadline, before anybody else can lead. Its cause matches [ErrLost] or [ErrStopped] if the tenure ended it. Its
// resources are freed at that end, so pass a ctx that ends with the work.
//
// Call it at the start of OnStartedLeading, with the context given there. If ctx has ended, or there is no tenure, it
// returns an error that matches [ErrNotLeading] and, if the tenure has ended, its cause. So a callback that is
// delayed never gets a later tenure's token.
func (l *Lock) NewContext(ctx context.Context) (context.Context, error) {
	// The tenure is read before ctx is checked: the elector ends ctx before it can begin another tenure.
	t := l.present()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: the context has ended: %w", ErrNotLeading, context.Cause(ctx))
	case t == nil:
		return nil, ErrNotLeading
	case !t.live():
		return nil, fmt.Errorf("%w: %w", ErrNotLeading, context.Cause(t.ctx))
	}
	// The tenure's context is the parent: the call that ends the tenure ends work itself, before it sends a release.
	work, done := scope.Work(t.ctx, ctx)
	context.AfterFunc(work, done) // ctx may outlive many tenures
	return fence.WithLock(fence.NewContext(work, t.token), l.key), nil
}

// present is the last tenure, live or not, or nil.
func (l *Lock) present() *tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// install makes t the present tenure.
func (l *Lock) install(t *tenure) {
	l.mu.Lock()
	l.current = t
	l.mu.Unlock()
	context.AfterFunc(t.ctx, func() {
		if cause := context.Cause(t.ctx); errors.Is(cause, ErrLost) {
			l.log.Error("tenure over", "lock", l.name, "token", t.token, "err", cause)
		}
	})
}

// lose ends the present tenure, if it is live, with ErrLost and the reason.
func (l *Lock) lose(why string) {
	if t := l.present(); t != nil {
		t.end(fmt.Errorf("%w: %s", ErrLost, why))
	}
}

// stop ends the present tenure because the elector has stopped.
func (l *Lock) stop() {
	if t := l.present(); t != nil {
		t.end(ErrStopped)
	}
}

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
