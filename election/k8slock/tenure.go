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
)

// tenure is the time from one acquisition to its end. It has an etcd lease of its own, by which its record is known.
type tenure struct {
	token    fence.Token
	lease    clientv3.LeaseID
	ttl      int64 // granted, in seconds
	renewals renewals
	ctx      context.Context //nolint:containedctx // it is the tenure's life
	end      context.CancelCauseFunc

	extended chan struct{} // of capacity 1: there was a renewal

	mu    sync.Mutex // guards the fields below
	from  clock.Instant
	valid time.Duration // counted from from
}

// newTenure begins a tenure that is valid for a time counted from from. It may be over already.
func newTenure(conn *etcd.Conn, token fence.Token, grant *clientv3.LeaseGrantResponse, from clock.Instant, valid time.Duration) *tenure {
	ctx, end := context.WithCancelCause(context.Background())
	t := &tenure{
		token:    token,
		lease:    grant.ID,
		ttl:      grant.TTL,
		renewals: renewals{conn: conn, lease: grant.ID},
		ctx:      ctx,
		end:      end,
		from:     from,
		valid:    valid,
		extended: make(chan struct{}, 1),
	}
	go t.expire()
	return t
}

// expire ends the tenure at its deadline, and returns when it is over. Its timer goes off by the clock that runs on
// while the host is suspended too, and so as soon as it wakes up.
func (t *tenure) expire() {
	defer t.renewals.end()
	look := clock.System.NewTimer(t.remaining())
	defer look.Stop()
	for t.live() {
		select {
		case <-t.ctx.Done():
		case <-look.C: // maybe early
			look.Reset(t.remaining())
		case <-t.extended: // the record's duration may have become shorter
			look.Reset(t.remaining())
		}
	}
}

// live reports whether the tenure goes on. It does not rely on the timer: a process that wakes up after a pause may
// come here first.
func (t *tenure) live() bool {
	if t.remaining() <= 0 {
		t.end(fmt.Errorf("%w: no renewal was acknowledged before the deadline", ErrLost))
	}
	return t.ctx.Err() == nil
}

// cause is why the tenure is over, nil if it is not.
func (t *tenure) cause() error { return context.Cause(t.ctx) }

// extend takes a renewal that was sent at from, and reports whether the tenure goes on. One past its deadline stays
// over, however good the news.
func (t *tenure) extend(from clock.Instant, valid time.Duration) bool {
	if !t.live() {
		return false
	}
	t.mu.Lock()
	t.from, t.valid = from, valid
	t.mu.Unlock()
	select {
	case t.extended <- struct{}{}:
	default:
	}
	return t.live()
}

func (t *tenure) remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.valid - clock.System.Since(t.from)
}

// usable is how much of a lease's time a tenure lasts. The rest is for clocks that do not tick at quite the same rate
// and for the time from the deadline to the last write.
func usable(granted time.Duration) time.Duration {
	return granted - min(granted/10, time.Second)
}

// Token returns the fencing token of the present tenure and true, or 0 and false if there is none: before the first
// acquisition, and after the elector has stopped or the tenure was lost or has passed its deadline.
//
// Work of a tenure should carry the token it began with, which is what [Lock.NewContext] is for: Token asked again
// later may be that of the next tenure. Safe for concurrent use.
func (l *Lock) Token() (fence.Token, bool) {
	t := l.present()
	if t == nil || !t.live() {
		return 0, false
	}
	return t.token, true
}

// NewContext returns a context for the work of the present tenure. It carries the tenure's token for package fence and, as the
// lock's name, the record's key. It ends with ctx or with the tenure, whichever is first: at the local deadline at the latest, which
// comes before anybody else can lead. Its cause matches [ErrLost] or [ErrStopped] if the tenure ended it.
//
// Call it first in OnStartedLeading with the context given there. If ctx has ended, or there is no tenure, it
// returns an error that matches [ErrNotLeading] and, if the tenure has ended, its cause: a callback that was
// held up never gets a later tenure's token. Safe for concurrent use.
func (l *Lock) NewContext(ctx context.Context) (context.Context, error) {
	// In this order: the elector ends ctx before it can begin another tenure.
	t := l.present()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: the context has ended: %w", ErrNotLeading, context.Cause(ctx))
	case t == nil:
		return nil, ErrNotLeading
	case !t.live():
		return nil, fmt.Errorf("%w: %w", ErrNotLeading, t.cause())
	}
	ctx, cancel := context.WithCancelCause(fence.WithLock(fence.NewContext(ctx, t.token), l.key))
	context.AfterFunc(t.ctx, func() { cancel(t.cause()) })
	return ctx, nil
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
		if cause := t.cause(); errors.Is(cause, ErrLost) {
			l.log.Error("tenure over", "lock", l.name, "token", t.token, "err", cause)
		}
	})
}

// lose ends the present tenure, if it is live, because of what was found.
func (l *Lock) lose(why string) {
	if t := l.present(); t != nil {
		t.end(fmt.Errorf("%w: %s", ErrLost, why))
	}
}

// stop ends the present tenure on the elector's word.
func (l *Lock) stop() {
	if t := l.present(); t != nil {
		t.end(ErrStopped)
	}
}
